// A block's products with quantised operands. Results are close to those without, the same under every memory policy,
// and quantisation happens only if it is enabled.
#include <gmock/gmock.h>

#include <cmath>

#include "model/tiny_model.h"

namespace perigee::testing {

namespace {

constexpr PrecisionOptions kFp8{.linear = LinearPrecision::fp8_block};
constexpr PrecisionOptions kFp8Bf16Wgrad{.linear = LinearPrecision::fp8_block, .wgrad = GradientPrecision::bf16};

/// Every extent of its products is a multiple of 128.
ModelOptions tiled_options() {
    ModelOptions options = tiny_options();
    options.hidden_size = 128;
    options.intermediate_size = 256;
    options.num_attention_heads = 4;
    options.num_key_value_heads = 2;
    options.head_dim = 32;
    return options;
}

/// A model with weights as large as at the start of training.
template <class Real>
struct TiledModel : TinyModel<Real> {
    explicit TiledModel(PrecisionOptions const& precision, MemoryPolicy const& policy = {},
                        ModelOptions const& options = tiled_options())
        : TinyModel<Real>(options, tiny_moba(), 5, policy, precision) {
        for (ParamLayout::Entry const& entry : this->layout.entries())
            if (entry.spec.shape.rank() == 2)
                for (int64_t i = 0; i < entry.local.size(); ++i)
                    this->weights[static_cast<size_t>(entry.offset + i)] /= 20;
    }
};

Batch tiled_batch() { return random_batch({100, 1, 23, 132}, tiny_options().vocab_size, 6); }

struct PrecisionRun {
    double loss = 0;
    std::vector<float> grads;
};
/// Two micro-batches; the second adds its gradients.
PrecisionRun train(PrecisionOptions const& precision, MemoryPolicy const& policy = {},
                   std::vector<AttentionKind> const& kinds = mixed()) {
    TiledModel<float> model(precision, policy);
    double loss = model.gradient(tiled_batch(), kinds, 1, /*fresh=*/true);
    loss += model.gradient(tiled_batch(), kinds, 0.5);
    return {loss, model.grads};
}

/// Calls visit(name, offset, size) for the gradient of each matrix.
template <class Visit>
void each_matrix(Visit visit) {
    ParamLayout const layout(llama_params(tiled_options()), 1, 0);
    for (ParamLayout::Entry const& e : layout.entries())
        if (e.spec.shape.rank() == 2)
            visit(e.spec.name, static_cast<size_t>(e.offset), static_cast<size_t>(e.local.size()));
}
double dot(std::span<float const> a, std::span<float const> b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
    return sum;
}

TEST(Precision, OfFp8GivesNearlyTheLossAndTheGradients) {
    // Full attention, because MoBA may select other blocks if scores nearly tie.
    PrecisionRun const exact = train({}, {}, all(AttentionKind::full));
    for (PrecisionOptions const& precision : {kFp8, kFp8Bf16Wgrad}) {
        PrecisionRun const found = train(precision, {}, all(AttentionKind::full));
        EXPECT_NE(found.loss, exact.loss);
        EXPECT_NEAR(found.loss, exact.loss, 0.003 * exact.loss);
        each_matrix([&](std::string const& name, size_t begin, size_t size) {
            auto const a = std::span(exact.grads).subspan(begin, size), b = std::span(found.grads).subspan(begin, size);
            double const cosine = dot(a, b) / std::sqrt(dot(a, a) * dot(b, b));
            EXPECT_GT(cosine, 0.99) << name;
            EXPECT_NEAR(std::sqrt(dot(b, b) / dot(a, a)), 1, 0.03) << name;
        });
    }
}

TEST(Precision, OfFp8IsThatOfTheSameOperandsInFp64) {
    // Differences come from fp32 rounding other than fp64, which sometimes changes an E4M3 value.
    auto const kinds = all(AttentionKind::full);
    PrecisionRun const narrow = train(kFp8, {}, kinds);
    TiledModel<double> wide(kFp8);
    double loss = wide.gradient(tiled_batch(), kinds, 1, true);
    loss += wide.gradient(tiled_batch(), kinds, 0.5);
    EXPECT_NEAR(narrow.loss, loss, 1e-4 * loss);
    EXPECT_LT(relative_error(narrow.grads, wide.grads), 0.02);
}

TEST(Precision, OfFp8GivesTheSameBitsUnderEveryPolicyOfMemory) {
    for (PrecisionOptions const& precision : {kFp8, kFp8Bf16Wgrad}) {
        PrecisionRun const kept = train(precision);
        for (char const* const recompute : {"elementwise", "mlp", "attention", "block", "none, mlp, block"}) {
            PrecisionRun const again = train(precision, {.recompute = parse_recompute(recompute, 3)});
            EXPECT_EQ(again.loss, kept.loss) << recompute;
            EXPECT_EQ(again.grads, kept.grads) << recompute;
        }
        PrecisionRun const offloaded = train(precision, {.offload = 1});
        EXPECT_EQ(offloaded.grads, kept.grads);
        PrecisionRun const chunked = train(precision, {.mlp_chunk = 128});  // tiles never cross chunks; sums are split
        EXPECT_NEAR(chunked.loss, kept.loss, 1e-5 * kept.loss);
        EXPECT_LT(relative_error(chunked.grads, kept.grads), 1e-2);
    }
}

TEST(Precision, TakesQuantisedOperandsWhereTheyAreAskedFor) {
    auto const calls = [](PrecisionOptions const& precision, MemoryPolicy const& policy = {}) {
        TiledModel<float> model(precision, policy);
        model.gradient(tiled_batch(), mixed());
        return std::pair{model.calls("matmul8"), model.calls("quantize")};
    };
    using Calls = std::pair<int64_t, int64_t>;
    // 12 products. Each quantises x and W in the forward, and dy, x^T and W^T in the backward. SwiGLU's backward
    // quantises the dy of gate_up itself.
    EXPECT_EQ(calls(kFp8), Calls(36, 57));
    EXPECT_EQ(calls(kFp8Bf16Wgrad), Calls(24, 48));
    EXPECT_EQ(calls({}), Calls(0, 0));
    EXPECT_EQ(calls({.linear = LinearPrecision::automatic}), Calls(0, 0)) << "too small to gain";
    PrecisionOptions edges = kFp8;
    edges.bf16_layers = {.first = 1, .last = 1};
    EXPECT_EQ(calls(edges), Calls(12, 19));
    edges.bf16_layers = {.first = 2, .last = 1};
    EXPECT_EQ(calls(edges), Calls(0, 0));
    EXPECT_EQ(calls(kFp8, {.mlp_chunk = 100}).first, 18) << "a chunk of 100 is no multiple of 128";
}

TEST(Precision, LeavesOtherPassesAlone) {
    TiledModel<float> plain({}), fp8(kFp8);
    EXPECT_EQ(fp8.loss(tiled_batch(), mixed()), plain.loss(tiled_batch(), mixed()));
    EXPECT_EQ(fp8.next_logits(tiled_batch(), mixed()), plain.next_logits(tiled_batch(), mixed()));
    EXPECT_EQ(fp8.calls("matmul8"), 0);
}

TEST(Precision, LeavesTensorsThatAreNoMultiplesOfTiles) {
    ModelOptions options = tiled_options();
    options.intermediate_size = 200;  // only qkv and o still fit
    TiledModel<float> model(kFp8, {}, options);
    model.gradient(tiled_batch(), mixed());
    EXPECT_EQ(model.calls("matmul8"), 18);
    TiledModel<float> uneven(kFp8);
    uneven.gradient(random_batch({100}, options.vocab_size, 6), mixed());
    EXPECT_EQ(uneven.calls("matmul8"), 0);
}

TEST(Precision, LetsWhatIsNotFiniteThrough) {
    for (char const* const name : {"model.layers.1.self_attn.o_proj.weight", "model.layers.0.mlp.up_proj.weight",
                                   "model.layers.2.mlp.down_proj.weight"}) {
        TiledModel<float> model(kFp8);
        model.weights[static_cast<size_t>(model.layout.entry(name).offset + 3)] =
            std::numeric_limits<float>::infinity();
        EXPECT_FALSE(std::isfinite(model.gradient(tiled_batch(), mixed()))) << name;
    }
}

TEST(Precision, CountsLayersOnce) {
    PrecisionOptions options = kFp8;
    options.bf16_layers = {.first = 2, .last = 2};
    EXPECT_THAT(problems(options, tiled_options()),
                ::testing::ElementsAre(::testing::AllOf(::testing::HasSubstr("bf16_layers.first (2)"),
                                                        ::testing::HasSubstr("num_hidden_layers (3)"))));
    options.bf16_layers = {.first = 2, .last = 1};
    EXPECT_TRUE(problems(options, tiled_options()).empty());
}

}  // namespace

}  // namespace perigee::testing
