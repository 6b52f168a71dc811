// What saves memory on a GPU, too, changes no bit: gradients of every level of recompute and with activations on the
// host are the same. Chunks of the MLP change the order of sums alone.
#include "model/tiny_model.h"

namespace perigee::testing {

namespace {

/// Heads that the kernels of both kinds of attention take.
ModelOptions four_layers() {
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

struct TrainedOnGpu {
    double loss = 0;
    std::vector<float> grads;
    int64_t bytes = 0;
};

TrainedOnGpu train_on_gpu(ModelOptions const& options, std::vector<AttentionKind> const& kinds,
                          MemoryPolicy const& policy) {
    auto const device = make_cuda_device(0);
    auto const ops = make_cuda_ops(*device, {.deterministic = true});
    auto const world = make_single_host_comm();
    Mesh const mesh(ParallelOptions{}, *world);
    ParamLayout const layout(llama_params(options), 1, 0);
    Llama model(options, layout, mesh, *ops, policy);
    std::vector<Selection> const layers = selections(kinds, {.block_size = 64, .top_k = 3});
    Batch const batch = random_batch({300, 1, 77, 512, 134}, options.vocab_size, 3);
    Arena state(*device), arena(*device);
    TensorView const weights = state.allocate("weights", DType::bf16, {layout.size()});
    TensorView const grads = state.allocate("grads", DType::f32, {layout.size()});
    std::vector<bf16> start;
    for (float const w : random_normal<float>(layout.size(), 7, 0.05)) start.push_back(to_bf16(w));
    ops->upload(weights, start.data());
    ops->fill_zero(grads);
    FlatWeights flat_weights(layout, weights);
    FlatGradients flat_grads(layout, grads);
    TrainedOnGpu result{.grads = poisoned<float>(layout.size())};
    for (int pass = 0; pass < 2; ++pass) {  // the second is replayed where graphs are on
        result.loss +=
            model.loss_and_gradient(flat_weights, {.grads = flat_grads, .scale = 0.01}, batch, layers, arena);
        arena.settle();
    }
    ops->download(result.grads.data(), grads);
    result.bytes = arena.peak_bytes();
    return result;
}

TEST(GpuRecompute, GivesTheSameBitsInLessMemory) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    using enum AttentionKind;
    for (bool variant : {false, true}) {
        ModelOptions options = four_layers();
        options.qkv_bias = options.qk_norm = variant;
        for (auto const& kinds : {std::vector(4, full), std::vector(4, moba), {moba, full, moba, full}}) {
            TrainedOnGpu const kept = train_on_gpu(options, kinds, {});
            int64_t bytes = kept.bytes;
            for (char const* const recompute : {"elementwise", "mlp", "attention", "block*2, attention*2", "block"}) {
                TrainedOnGpu const again = train_on_gpu(options, kinds, {.recompute = parse_recompute(recompute, 4)});
                EXPECT_EQ(again.loss, kept.loss) << recompute;
                EXPECT_EQ(again.grads, kept.grads) << recompute;
                EXPECT_LT(again.bytes, bytes) << recompute;
                bytes = again.bytes;
            }
            TrainedOnGpu const mixed =
                train_on_gpu(options, kinds, {.recompute = parse_recompute("none, block, attention, mlp", 4)});
            EXPECT_EQ(mixed.loss, kept.loss);
            EXPECT_EQ(mixed.grads, kept.grads);
        }
    }
}

TEST(GpuOffload, GivesTheSameBitsInLessMemory) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    using enum AttentionKind;
    ModelOptions options = four_layers();
    options.num_hidden_layers = 6;
    for (char const* const recompute : {"none", "attention*3, block*3", "block"}) {
        MemoryPolicy policy{.recompute = parse_recompute(recompute, 6)};
        std::vector const kinds = {moba, moba, full, moba, moba, full};
        TrainedOnGpu const kept = train_on_gpu(options, kinds, policy);
        int64_t bytes = kept.bytes;
        for (int64_t layers : {1, 4}) {
            policy.offload = layers;
            TrainedOnGpu const again = train_on_gpu(options, kinds, policy);
            EXPECT_EQ(again.loss, kept.loss) << recompute;
            EXPECT_EQ(again.grads, kept.grads) << recompute;
            EXPECT_LT(again.bytes, bytes) << recompute;
            bytes = again.bytes;
        }
    }
}

TEST(GpuMlpChunk, GivesTheSameButForTheOrderOfSumsInLessMemory) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    using enum AttentionKind;
    std::vector const kinds = {moba, full, moba, full};
    TrainedOnGpu const kept = train_on_gpu(four_layers(), kinds, {.recompute = parse_recompute("block", 4)});
    int64_t bytes = kept.bytes;
    for (int64_t chunk : {512, 128, 100}) {
        TrainedOnGpu const again =
            train_on_gpu(four_layers(), kinds, {.recompute = parse_recompute("block", 4), .mlp_chunk = chunk});
        EXPECT_NEAR(again.loss / kept.loss, 1, 1e-3) << chunk;
        EXPECT_LT(relative_error(again.grads, kept.grads), 0.02) << chunk << ": bf16 rounds other products' sums";
        EXPECT_LT(again.bytes, bytes) << chunk;
        bytes = again.bytes;
    }
}

}  // namespace

}  // namespace perigee::testing
