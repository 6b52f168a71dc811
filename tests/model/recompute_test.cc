// What a block computes again in its backward is what it had: the same bits, in less memory.
#include "model/tiny_model.h"

namespace perigee::testing {

namespace {

struct Trained {
    double loss = 0;
    std::vector<float> grads;
    int64_t bytes = 0;
};

Trained train(ModelOptions const& options, std::vector<AttentionKind> const& kinds, Recompute recompute) {
    TinyModel<float> model(options, tiny_moba(), 5, recompute);
    Batch const batch = random_batch({9, 1, 23, 16}, options.vocab_size, 6);
    double loss = model.gradient(batch, kinds);
    loss += model.gradient(batch, kinds, 0.5);
    return {loss, model.grads, model.arena.peak_bytes()};
}

TEST(Recompute, GivesTheSameBitsInLessMemory) {
    for (bool variant : {false, true}) {
        ModelOptions options = tiny_options();
        options.hidden_size = 64;  // large enough that memory is more than alignment
        options.intermediate_size = 96;
        options.qkv_bias = options.qk_norm = options.tie_word_embeddings = variant;
        for (auto const& kinds : {all(AttentionKind::full), all(AttentionKind::moba), mixed()}) {
            Trained const kept = train(options, kinds, Recompute::none);
            EXPECT_GT(relative_error(kept.grads, std::vector<float>(kept.grads.size())), 0);
            int64_t bytes = kept.bytes;
            for (Recompute recompute : {Recompute::elementwise, Recompute::mlp, Recompute::block}) {
                Trained const again = train(options, kinds, recompute);
                EXPECT_EQ(again.loss, kept.loss);
                EXPECT_EQ(again.grads, kept.grads) << "policy " << static_cast<int>(recompute);
                EXPECT_LT(again.bytes, bytes) << "policy " << static_cast<int>(recompute);
                bytes = again.bytes;
            }
        }
    }
}

}  // namespace

}  // namespace perigee::testing
