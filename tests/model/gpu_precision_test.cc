// Quantised products on a GPU. Gradients are close to those of the CPU in fp32, and bitwise equal in every run and
// under every memory policy.
#include <cmath>

#include "model/tiny_model.h"

namespace perigee::testing {

namespace {

constexpr PrecisionOptions kFp8{.linear = LinearPrecision::fp8_block};

/// Head sizes that the kernels of both kinds of attention support, and extents that are multiples of 128.
ModelOptions tiled_options() {
    ModelOptions options;
    options.vocab_size = 1000;
    options.hidden_size = 256;
    options.intermediate_size = 384;
    options.num_hidden_layers = 4;
    options.num_attention_heads = 4;
    options.num_key_value_heads = 2;
    options.head_dim = 64;
    options.max_position_embeddings = 1024;
    return options;
}

/// Weights as large as at the start of training, exact in bf16.
std::vector<bf16> start(ParamLayout const& layout) {
    std::vector<float> values = random_normal<float>(layout.size(), 7, 0.02);
    for (ParamLayout::Entry const& entry : layout.entries())
        if (entry.spec.init == Init::ones)
            for (int64_t i = 0; i < entry.local.size(); ++i) values[static_cast<size_t>(entry.offset + i)] += 1;
    std::vector<bf16> narrow;
    for (float const w : values) narrow.push_back(to_bf16(w));
    return narrow;
}

struct GpuPrecisionRun {
    double loss = 0;
    std::vector<float> grads;
    int64_t products = 0;  ///< with quantised operands
};

GpuPrecisionRun train(Device& device, Ops& plain, AttentionKind kind, PrecisionOptions const& precision,
                      MemoryPolicy const& policy = {}) {
    ModelOptions const options = tiled_options();
    CountedOps ops(plain);
    auto const world = make_single_host_comm();
    Mesh const mesh(ParallelOptions{}, *world);
    ParamLayout const layout(llama_params(options), 1, 0);
    Llama model(options, layout, mesh, ops, policy, precision);
    std::vector<Selection> const layers = selections(std::vector(4, kind), {.block_size = 64, .top_k = 3});
    Batch const batch = random_batch({300, 1, 77, 512, 134}, options.vocab_size, 3);
    Arena state(device), arena(device);
    TensorView const weights = state.allocate("weights", ops.compute_dtype(), {layout.size()});
    TensorView const grads = state.allocate("grads", DType::f32, {layout.size()});
    std::vector<bf16> const narrow = start(layout);
    std::vector<float> wide;
    for (bf16 const w : narrow) wide.push_back(to_float(w));
    ops.upload(weights, weights.dtype == DType::bf16 ? static_cast<void const*>(narrow.data()) : wide.data());
    ops.fill_zero(grads);
    FlatWeights flat_weights(layout, weights);
    FlatGradients flat_grads(layout, grads);
    GpuPrecisionRun result{.grads = poisoned<float>(layout.size())};
    for (int pass = 0; pass < 2; ++pass) {  // the second pass replays the graph, if graphs are on
        result.loss +=
            model.loss_and_gradient(flat_weights, {.grads = flat_grads, .scale = 0.01}, batch, layers, arena);
        arena.settle();
    }
    ops.download(result.grads.data(), grads);
    result.products = ops.calls["matmul8"];
    return result;
}

GpuPrecisionRun on_gpu(AttentionKind kind, PrecisionOptions const& precision, MemoryPolicy const& policy = {}) {
    auto const device = make_cuda_device(0);
    auto const ops = make_cuda_ops(*device, {.deterministic = true});
    return train(*device, *ops, kind, precision, policy);
}
GpuPrecisionRun on_host(AttentionKind kind, PrecisionOptions const& precision) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 4);
    return train(*device, *ops, kind, precision);
}

double dot(std::span<float const> a, std::span<float const> b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
    return sum;
}

class GpuPrecision : public ::testing::Test {
  protected:
    void SetUp() override {
        if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    }
    /// The gradient of each matrix.
    void expect_near(GpuPrecisionRun const& found, GpuPrecisionRun const& expected, double cosine) {
        EXPECT_NEAR(found.loss, expected.loss, 1e-3 * expected.loss);
        ParamLayout const layout(llama_params(tiled_options()), 1, 0);
        for (ParamLayout::Entry const& e : layout.entries()) {
            if (e.spec.shape.rank() != 2) continue;
            auto const part = [&](GpuPrecisionRun const& of) {
                return std::span(of.grads).subspan(static_cast<size_t>(e.offset), static_cast<size_t>(e.local.size()));
            };
            double const aa = dot(part(found), part(found)), bb = dot(part(expected), part(expected));
            EXPECT_GT(dot(part(found), part(expected)) / std::sqrt(aa * bb), cosine) << e.spec.name;
            EXPECT_NEAR(std::sqrt(aa / bb), 1, 0.03) << e.spec.name;
        }
    }
};

/// Each quantised product is about 4% off (3 mantissa bits). Gradients of the last blocks have gone through about
/// twenty of them.
constexpr double kFp8Cosine = 0.98;

TEST_F(GpuPrecision, OfFp8GivesNearlyTheGradientsOfTheCpu) {
    GpuPrecisionRun const exact = on_host(AttentionKind::full, {}), fp8 = on_gpu(AttentionKind::full, kFp8);
    EXPECT_GT(fp8.products, 0);
    expect_near(fp8, exact, kFp8Cosine);
    expect_near(fp8, on_host(AttentionKind::full, kFp8), kFp8Cosine);
    expect_near(on_gpu(AttentionKind::full, {.linear = LinearPrecision::fp8_block, .wgrad = GradientPrecision::bf16}),
                exact, kFp8Cosine);
}

TEST_F(GpuPrecision, OfFp8GivesTheSameBitsEveryTimeAndUnderEveryPolicy) {
    for (AttentionKind const kind : {AttentionKind::full, AttentionKind::moba}) {
        GpuPrecisionRun const kept = on_gpu(kind, kFp8), again = on_gpu(kind, kFp8);
        EXPECT_EQ(again.loss, kept.loss);
        EXPECT_EQ(again.grads, kept.grads);
        EXPECT_NE(on_gpu(kind, {}).grads, kept.grads);
        for (char const* const recompute :
             {"elementwise", "mlp", "attention", "block", "none, block, attention, mlp"}) {
            GpuPrecisionRun const found = on_gpu(kind, kFp8, {.recompute = parse_recompute(recompute, 4)});
            EXPECT_EQ(found.loss, kept.loss) << recompute;
            EXPECT_EQ(found.grads, kept.grads) << recompute;
        }
        EXPECT_EQ(on_gpu(kind, kFp8, {.offload = 2}).grads, kept.grads);
    }
}

}  // namespace

}  // namespace perigee::testing
