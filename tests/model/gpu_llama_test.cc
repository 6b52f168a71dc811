// The whole model on the GPU against the CPU: the same weights and documents give the same loss, and every gradient
// tensor points the same way, bf16 against fp32.
#include <gtest/gtest.h>

#include <cmath>

#include "model/tiny_model.h"

namespace perigee::testing {

namespace {

ModelOptions two_layers() {
    ModelOptions options;
    options.vocab_size = 1000;
    options.hidden_size = 256;
    options.intermediate_size = 384;
    options.num_hidden_layers = 2;
    options.num_attention_heads = 4;
    options.num_key_value_heads = 2;
    options.head_dim = 64;
    options.max_position_embeddings = 1024;
    return options;
}

struct Result {
    double loss = 0;
    std::vector<float> grads;
    TokenScores scores = {};
};

/// Weights as a model starts, rounded to bf16, with norms and biases that matter.
std::vector<float> gpu_weights(ParamLayout const& layout, uint64_t seed) {
    std::vector<float> weights = random_normal<float>(layout.size(), seed, 0.05);
    for (ParamLayout::Entry const& entry : layout.entries())
        if (entry.spec.init == Init::ones)
            for (int64_t i = 0; i < entry.local.size(); ++i) weights[static_cast<size_t>(entry.offset + i)] += 1;
    for (float& w : weights) w = to_float(to_bf16(w));
    return weights;
}

Result run(Device& device, Ops& ops, ModelOptions const& options, MobaOptions const& moba, Batch const& batch,
           std::vector<AttentionKind> const& kinds) {
    auto const world = make_single_host_comm();
    Mesh const mesh(ParallelOptions{}, *world);
    ParamLayout const layout(llama_params(options), 1, 0);
    Llama model(options, layout, mesh, ops);
    std::vector<Selection> const layers = selections(kinds, moba);
    std::vector<float> const start = gpu_weights(layout, 7);
    Arena state(device), arena(device);
    TensorView const weights = state.allocate("weights", ops.compute_dtype(), {layout.size()});
    TensorView const grads = state.allocate("grads", ops.main_dtype(), {layout.size()});
    if (weights.dtype == DType::bf16) {
        std::vector<bf16> rounded;
        for (float w : start) rounded.push_back(to_bf16(w));
        ops.upload(weights, rounded.data());
    } else {
        ops.upload(weights, start.data());
    }
    ops.fill_zero(grads);
    FlatWeights flat_weights(layout, weights);
    FlatGradients flat_grads(layout, grads);
    Result result{.grads = poisoned<float>(layout.size())};
    result.scores = model.scores(flat_weights, batch, layers, options.vocab_size, arena);
    for (int pass = 0; pass < 2; ++pass)  // two micro-batches: gradients accumulate
        result.loss +=
            model.loss_and_gradient(flat_weights, {.grads = flat_grads, .scale = 0.01}, batch, layers, arena);
    ops.download(result.grads.data(), grads);
    return result;
}

struct Agreement {
    double cosine, norms;  ///< of found and wanted; the ratio of their norms
};

Agreement agreement_of(float const* found, float const* want, int64_t size) {
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < size; ++i) {
        ab += static_cast<double>(found[i]) * want[i];
        aa += static_cast<double>(found[i]) * found[i];
        bb += static_cast<double>(want[i]) * want[i];
    }
    return {ab / std::sqrt(aa * bb), std::sqrt(aa / bb)};
}

/// Random logits lie close together: many of the best still have to be the same ones. `apart` tokens may differ by
/// more.
void expect_scores(TokenScores const& found, TokenScores const& want, int64_t apart) {
    ASSERT_EQ(found.nll.size(), want.nll.size());
    int64_t same = 0;
    for (size_t i = 0; i < want.nll.size(); ++i) {
        double const difference = std::abs(found.nll[i] - want.nll[i]);
        EXPECT_LT(difference, 0.4);
        if (difference >= 0.15) --apart;
        same += found.best[i] == want.best[i];
    }
    EXPECT_GE(apart, 0) << "tokens too many";
    EXPECT_GT(same, std::ssize(want.nll) * 3 / 4);
}

class GpuLlama : public ::testing::Test {
  protected:
    void SetUp() override {
        if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    }
    /// `least` is the cosine every gradient tensor must reach. Where MoBA chooses by bf16 keys, choices near a tie may
    /// fall otherwise than in fp32, which the gradients of queries and keys show, and the loss of a few tokens.
    void expect_agreement(ModelOptions const& options, std::vector<AttentionKind> const& kinds, double least = 0.999,
                          int64_t top_k = 3, int64_t apart = 0) {
        auto const host = make_host_device();
        auto const cuda = make_cuda_device(0);
        auto const host_ops = make_host_ops(*host);
        auto const cuda_ops = make_cuda_ops(*cuda);
        MobaOptions const moba{.block_size = 64, .top_k = top_k};
        Batch const batch = random_batch({300, 1, 77, 512, 134}, options.vocab_size, 3);
        Result const want = run(*host, *host_ops, options, moba, batch, kinds);
        Result const found = run(*cuda, *cuda_ops, options, moba, batch, kinds);
        EXPECT_NEAR(found.loss / want.loss, 1, 2e-3);
        expect_scores(found.scores, want.scores, apart);
        ParamLayout const layout(llama_params(options), 1, 0);
        for (ParamLayout::Entry const& entry : layout.entries()) {
            auto const [cosine, norms] =
                agreement_of(found.grads.data() + entry.offset, want.grads.data() + entry.offset, entry.local.size());
            EXPECT_GE(cosine, least) << entry.spec.name;
            EXPECT_NEAR(norms, 1, 0.02) << entry.spec.name;
        }
        Result const again = run(*cuda, *cuda_ops, options, moba, batch, kinds);
        EXPECT_EQ(found.loss, again.loss);
    }
};

TEST_F(GpuLlama, AgreesWithTheCpuInFullAttention) {
    expect_agreement(two_layers(), {AttentionKind::full, AttentionKind::full});
}

TEST_F(GpuLlama, AgreesWithTheCpuInAHybrid) {
    expect_agreement(two_layers(), {AttentionKind::moba, AttentionKind::full});
}

TEST_F(GpuLlama, AgreesWithTheCpuWithAConvolutionOfKeys) {
    constexpr int64_t kEveryBlock = 8;  // every block is selected, so no near-tie can go the other way
    ModelOptions options = two_layers();
    options.key_conv = 3;
    expect_agreement(options, {AttentionKind::moba, AttentionKind::full}, 0.998, kEveryBlock);
    options.key_conv = 5;
    options.qk_norm = true;
    expect_agreement(options, {AttentionKind::moba, AttentionKind::full}, 0.998, kEveryBlock);
}

TEST_F(GpuLlama, AgreesWithTheCpuWithBiasNormsTiedWeightsAndLargeHeads) {
    ModelOptions options = two_layers();
    options.qkv_bias = options.qk_norm = options.tie_word_embeddings = true;
    options.head_dim = 128;
    expect_agreement(options, {AttentionKind::full, AttentionKind::full});
    expect_agreement(options, {AttentionKind::full, AttentionKind::moba}, 0.997, 3, 2);
}

}  // namespace

}  // namespace perigee::testing
