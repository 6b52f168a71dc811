// Chunks of the MLP and activations on the host give what the model gives without them, in less memory.
#include <gmock/gmock.h>

#include "model/tiny_model.h"

namespace perigee::testing {

namespace {

template <class Real>
struct Trained {
    double loss = 0;
    std::vector<Real> grads;
    int64_t bytes = 0;
};

/// Two micro-batches, the first of which overwrites the gradients, and an evaluation.
template <class Real>
Trained<Real> train(ModelOptions const& options, std::vector<AttentionKind> const& kinds, MemoryPolicy const& policy) {
    TinyModel<Real> model(options, tiny_moba(), 5, policy);
    Batch const batch = random_batch({9, 1, 23, 16}, options.vocab_size, 6);
    Trained<Real> result;
    result.loss = model.gradient(batch, kinds, 1, true);
    result.loss += model.gradient(batch, kinds, 0.5);
    result.loss += model.loss(batch, kinds);
    result.grads = model.grads;
    result.bytes = model.arena.peak_bytes();
    return result;
}

ModelOptions without_or_with_all(bool all) {
    ModelOptions options = tiny_options();
    options.hidden_size = 64;  // large enough that memory is more than alignment
    options.intermediate_size = 96;
    options.qkv_bias = options.qk_norm = options.tie_word_embeddings = all;
    return options;
}

TEST(MlpChunk, GivesTheSameButForTheOrderOfSumsInLessMemory) {
    for (bool variant : {false, true}) {
        ModelOptions const options = without_or_with_all(variant);
        for (char const* const recompute : {"none", "elementwise", "mlp", "block*2, attention"}) {
            MemoryPolicy policy{.recompute = parse_recompute(recompute, 3)};
            auto const kept = train<double>(options, mixed(), policy);
            int64_t bytes = kept.bytes;
            for (int64_t chunk : {24, 16, 7, 1}) {  // of 49 tokens: none divides them but 7 and 1
                policy.mlp_chunk = chunk;
                auto const again = train<double>(options, mixed(), policy);
                EXPECT_NEAR(again.loss, kept.loss, 1e-12 * kept.loss) << recompute << ", " << chunk;
                EXPECT_LT(relative_error(again.grads, kept.grads), 1e-13) << recompute << ", " << chunk;
                EXPECT_LT(again.bytes, bytes) << recompute << ", " << chunk;
                bytes = again.bytes;
            }
        }
    }
}

/// One chunk is the MLP that is computed again.
TEST(MlpChunk, OfAllTokensIsTheSameBits) {
    for (auto const& kinds : {all(AttentionKind::full), mixed()}) {
        auto const kept = train<float>(without_or_with_all(true), kinds, {});
        for (int64_t chunk : {49, 50, 1 << 20}) {
            auto const again = train<float>(without_or_with_all(true), kinds, {.mlp_chunk = chunk});
            EXPECT_EQ(again.loss, kept.loss);
            EXPECT_EQ(again.grads, kept.grads);
            EXPECT_LT(again.bytes, kept.bytes);
        }
    }
}

TEST(Offload, GivesTheSameBitsInLessMemory) {
    ModelOptions options = without_or_with_all(false);
    options.num_hidden_layers = 6;
    for (bool variant : {false, true}) {
        options.qk_norm = variant;
        for (char const* const recompute :
             {"none", "elementwise", "mlp", "attention", "block", "mlp, block, attention, none, elementwise, block"}) {
            MemoryPolicy policy{.recompute = parse_recompute(recompute, 6)};
            for (auto const& kinds : {std::vector(6, AttentionKind::full),
                                      std::vector(6, AttentionKind::moba),
                                      {AttentionKind::full, AttentionKind::moba, AttentionKind::moba,
                                       AttentionKind::full, AttentionKind::moba, AttentionKind::full}}) {
                policy.offload = 0;
                auto const kept = train<float>(options, kinds, policy);
                for (int64_t layers : {1, 2, 3, 4, 5, 100}) {
                    policy.offload = layers;
                    auto const again = train<float>(options, kinds, policy);
                    EXPECT_EQ(again.loss, kept.loss) << recompute << ", " << layers;
                    EXPECT_EQ(again.grads, kept.grads) << recompute << ", " << layers;
                }
                policy.offload = 4;
                EXPECT_LT(train<float>(options, kinds, policy).bytes, kept.bytes) << recompute;
            }
        }
    }
}

TEST(Offload, TakesAsMuchOfTheHostAsItFreesOfTheDevice) {
    ModelOptions options = without_or_with_all(false);
    options.num_hidden_layers = 6;
    Batch const batch = random_batch({9, 1, 23, 31}, options.vocab_size, 6);
    auto const bytes = [&](int64_t offload) {
        TinyModel<float> model(options, tiny_moba(), 5, {.offload = offload});
        model.gradient(batch, std::vector(6, AttentionKind::full));
        return std::pair(model.arena.peak_bytes(), model.offloaded_bytes());
    };
    auto const [all, none] = bytes(0);
    EXPECT_EQ(none, 0);
    int64_t const one = bytes(1).second;  // 64 tokens: every tensor is a multiple of 256 bytes
    for (int64_t layers : {1, 2, 4}) {
        auto const [device, host] = bytes(layers);
        EXPECT_EQ(host, layers * one);
        EXPECT_EQ(device, all - host);
    }
    EXPECT_EQ(bytes(5), bytes(4)) << "two layers take turns on the device";
    EXPECT_EQ(bytes(4096), bytes(4));
}

}  // namespace

}  // namespace perigee::testing
