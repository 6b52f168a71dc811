// What the whole model promises besides its gradient.
#include <algorithm>

#include "model/naive_llama.h"
#include "model/tiny_model.h"

namespace perigee::testing {

namespace {

auto const kFull = all(AttentionKind::full);
auto const kMoba = all(AttentionKind::moba);

Batch document(Batch const& batch, size_t index) {
    auto const begin = batch.cu_seqlens[index], end = batch.cu_seqlens[index + 1];
    auto const cut = [&](auto const& values) {
        return std::decay_t<decltype(values)>(values.begin() + begin, values.begin() + end);
    };
    return {.ids_T = cut(batch.ids_T),
            .targets_T = cut(batch.targets_T),
            .weights_T = cut(batch.weights_T),
            .positions_T = cut(batch.positions_T),
            .cu_seqlens = {0, end - begin}};
}

TEST(Llama, LossIsThatOfTheFormulas) {
    for (int variant = 0; variant < 16; ++variant) {
        ModelOptions options = tiny_options();
        options.key_conv = (variant & 8) != 0 ? 3 : 0;
        options.tie_word_embeddings = (variant & 1) != 0;
        options.qkv_bias = (variant & 2) != 0;
        options.qk_norm = (variant & 4) != 0;
        TinyModel<double> model(options, tiny_moba(), 11);
        Batch const batch = random_batch({13, 1, 9}, options.vocab_size, 12);
        double const expected = NaiveLlama(options, model.layout, model.weights).loss(batch);
        EXPECT_NEAR(model.loss(batch, kFull) / expected, 1, 1e-12) << "variant " << variant;
    }
}

TEST(Llama, Fp32FollowsFp64) {
    ModelOptions const options = tiny_options();
    TinyModel<double> wide(options, tiny_moba(), 13);
    TinyModel<float> narrow(options, tiny_moba(), 13);
    Batch const batch = random_batch({30, 12}, options.vocab_size, 14);
    double const exact = wide.gradient(batch, mixed());
    EXPECT_NEAR(narrow.gradient(batch, mixed()) / exact, 1, 1e-6);
    EXPECT_LT(relative_error(narrow.grads, wide.grads), 1e-5);
}

TEST(Llama, EvaluationGivesTheTrainingLossInLessMemory) {
    ModelOptions const options = tiny_options();
    Batch const batch = random_batch({600, 400}, options.vocab_size, 15);
    TinyModel<float> evaluated(options, tiny_moba(), 16), trained(options, tiny_moba(), 16);
    EXPECT_EQ(evaluated.loss(batch, mixed()), trained.gradient(batch, mixed()));
    EXPECT_LT(evaluated.arena.peak_bytes(), trained.arena.peak_bytes() * 0.6);
}

TEST(Llama, ADocumentDoesNotSeeItsNeighbours) {
    ModelOptions const options = tiny_options();
    TinyModel<double> model(options, tiny_moba(), 17);
    Batch const packed = random_batch({21, 1, 10, 6}, options.vocab_size, 18);
    for (auto const& kinds : {kFull, mixed()}) {
        double sum = 0;
        for (size_t i = 0; i < 4; ++i) sum += model.loss(document(packed, i), kinds);
        EXPECT_NEAR(model.loss(packed, kinds) / sum, 1, 1e-12);

        Batch others = packed;
        for (size_t t = 0; t < others.ids_T.size(); ++t) {
            if (21 <= t && t < 32) continue;  // the second and third stay
            others.ids_T[t] = (others.ids_T[t] + 3) % 11;
            others.weights_T[t] = 0;
        }
        double const alone = model.loss(document(packed, 1), kinds) + model.loss(document(packed, 2), kinds);
        EXPECT_NEAR(model.loss(others, kinds) / alone, 1, 1e-12);
    }
}

TEST(Llama, MobaThatCoversEveryBlockIsFullAttention) {
    ModelOptions const options = tiny_options();
    MobaOptions const covering{.block_size = 4, .top_k = 5};
    TinyModel<double> full(options, covering, 19), moba(options, covering, 19);
    Batch const batch = random_batch({20, 3, 17, 1}, options.vocab_size, 20);
    EXPECT_NEAR(moba.gradient(batch, kMoba) / full.gradient(batch, kFull), 1, 1e-12);
    EXPECT_LT(relative_error(moba.grads, full.grads), 1e-10);
    // One block fewer makes a difference, so that the test above means something.
    TinyModel<double> sparse(options, {.block_size = 4, .top_k = 4}, 19);
    sparse.gradient(batch, kMoba);
    EXPECT_GT(relative_error(sparse.grads, full.grads), 1e-6);
}

TEST(Llama, TopOneIsAttentionInsideTheBlock) {
    ModelOptions options = tiny_options();
    TinyModel<double> model(options, {.block_size = 4, .top_k = 1}, 21);
    Batch const whole = random_batch({16}, options.vocab_size, 22);
    Batch blocks = whole;  // the same tokens at the same positions, as documents of one block
    blocks.cu_seqlens = {0, 4, 8, 12, 16};
    EXPECT_NEAR(model.loss(whole, kMoba) / model.loss(blocks, kFull), 1, 1e-12);
}

TEST(Llama, DocumentsOfOneTokenAndEmptyOnesWork) {
    ModelOptions const options = tiny_options();
    TinyModel<double> model(options, tiny_moba(), 23);
    Batch batch = random_batch({1, 1, 1}, options.vocab_size, 24);
    batch.cu_seqlens = {0, 1, 1, 2, 3, 3};
    double const full = model.gradient(batch, kFull);
    EXPECT_NEAR(full, NaiveLlama(options, model.layout, model.weights).loss(batch), 1e-10);
    EXPECT_NEAR(model.gradient(batch, kMoba), full, 1e-10);
    for (double g : model.grads) EXPECT_TRUE(std::isfinite(g));
}

TEST(Llama, AFullyMaskedBatchHasNoLossAndNoGradient) {
    ModelOptions const options = tiny_options();
    TinyModel<float> model(options, tiny_moba(), 25);
    Batch batch = random_batch({20, 5}, options.vocab_size, 26);
    model.gradient(batch, mixed());  // leaves its traces in the arena
    std::ranges::fill(model.grads, 0.0f);
    std::ranges::fill(batch.weights_T, 0.0f);
    EXPECT_EQ(model.loss(batch, mixed()), 0);
    EXPECT_EQ(model.gradient(batch, mixed()), 0);
    for (float g : model.grads) ASSERT_EQ(g, 0);
}

TEST(Llama, CorrectTokensAreThoseWhoseTargetIsLikeliest) {
    ModelOptions const options = tiny_options();
    TinyModel<float> model(options, tiny_moba(), 41);
    Batch batch = random_batch({19}, options.vocab_size, 42);
    double expected = 0, possible = 0;
    for (int32_t t = 0; t < 19; ++t) {
        Batch text = batch;
        auto const length = static_cast<size_t>(t) + 1;
        text.ids_T.resize(length), text.targets_T.resize(length), text.weights_T.resize(length);
        text.positions_T.resize(length);
        text.cu_seqlens = {0, t + 1};
        auto const logits = model.next_logits(text, mixed());
        auto const best = std::max_element(logits.begin(), logits.end()) - logits.begin();
        auto const at = static_cast<size_t>(t);
        if (t % 2 == 0) batch.targets_T[at] = static_cast<int32_t>(best);
        if (batch.targets_T[at] == best) expected += static_cast<double>(batch.weights_T[at]);
        possible += static_cast<double>(batch.weights_T[at]);
    }
    ASSERT_GT(expected, 0);
    ASSERT_LT(expected, possible);
    EXPECT_EQ(model.sums(batch, mixed()).correct, expected);
}

TEST(Llama, GradientsAccumulateAndScale) {
    ModelOptions const options = tiny_options();
    TinyModel<double> together(options, tiny_moba(), 27), apart(options, tiny_moba(), 27);
    Batch const batch = random_batch({12, 19}, options.vocab_size, 28);
    together.gradient(batch, mixed(), 3);
    for (size_t i = 0; i < 2; ++i) apart.gradient(document(batch, i), mixed(), 3);
    EXPECT_LT(relative_error(apart.grads, together.grads), 1e-12);
    TinyModel<double> plain(options, tiny_moba(), 27);
    plain.gradient(batch, mixed(), 1);
    for (double& g : plain.grads) g *= 3;
    EXPECT_LT(relative_error(together.grads, plain.grads), 1e-12);
}

TEST(Llama, FreshGradientsAreThoseAddedToZeros) {
    for (bool tied : {false, true}) {
        ModelOptions options = tiny_options();
        options.tie_word_embeddings = options.qkv_bias = options.qk_norm = tied;
        Batch const batch = random_batch({7, 20}, options.vocab_size, 3);
        Batch masked = batch;
        std::ranges::fill(masked.weights_T, 0.0f);
        for (Batch const& first : {batch, masked}) {
            TinyModel<float> added(options, tiny_moba(), 5), written(options, tiny_moba(), 5);
            added.gradient(first, mixed());
            written.grads = poisoned<float>(std::ssize(written.grads));
            written.gradient(first, mixed(), 1, /*fresh=*/true);
            EXPECT_EQ(written.grads, added.grads) << "tied " << tied;
            added.gradient(batch, mixed());
            written.gradient(batch, mixed());
            EXPECT_EQ(written.grads, added.grads) << "tied " << tied;
        }
    }
}

TEST(Llama, LaterStepsAllocateNothing) {
    ModelOptions const options = tiny_options();
    TinyModel<float> model(options, tiny_moba(), 29);
    Batch const batch = random_batch({700, 500, 900}, options.vocab_size, 30);
    model.gradient(batch, mixed());
    int64_t const growths = model.arena.growths();
    for (int step = 0; step < 3; ++step) model.gradient(batch, mixed());
    model.loss(batch, mixed());
    EXPECT_EQ(model.arena.growths(), growths);
}

TEST(Llama, RepeatsBitwise) {
    ModelOptions const options = tiny_options();
    Batch const batch = random_batch({70, 50}, options.vocab_size, 31);
    TinyModel<float> one(options, tiny_moba(), 32), two(options, tiny_moba(), 32);
    EXPECT_EQ(one.gradient(batch, mixed()), two.gradient(batch, mixed()));
    EXPECT_EQ(one.grads, two.grads);
}

TEST(Llama, NextLogitsAreThoseOfTheLastToken) {
    ModelOptions const options = tiny_options();
    TinyModel<double> model(options, tiny_moba(), 33);
    Batch batch = random_batch({9, 14}, options.vocab_size, 34);
    std::ranges::fill(batch.weights_T, 0.0f);
    batch.weights_T.back() = 1;
    std::vector<float> const logits = model.next_logits(batch, mixed());
    ASSERT_EQ(std::ssize(logits), options.vocab_size);
    double total = 0;
    for (float l : logits) total += std::exp(static_cast<double>(l));
    double const nll = std::log(total) - logits[static_cast<size_t>(batch.targets_T.back())];
    EXPECT_NEAR(nll, model.loss(batch, mixed()), 1e-5);
}

TEST(Llama, ChunksOfTheLossDoNotShow) {
    // A vocabulary so large that 300 tokens take three chunks.
    ModelOptions options = tiny_options();
    options.vocab_size = 70001;
    options.num_hidden_layers = 1;
    TinyModel<double> model(options, tiny_moba(), 35);
    Batch batch = random_batch({300}, options.vocab_size, 36);
    for (size_t t = 128; t < 256; ++t) batch.weights_T[t] = 0;  // the second chunk is masked
    std::vector<AttentionKind> const kinds{AttentionKind::full};
    double const whole = model.gradient(batch, kinds);
    Batch first = batch, second = batch;
    for (size_t t = 0; t < 300; ++t) (t < 77 ? second : first).weights_T[t] = 0;
    TinyModel<double> parts(options, tiny_moba(), 35);
    double const sum = parts.gradient(first, kinds) + parts.gradient(second, kinds);
    EXPECT_NEAR(sum / whole, 1, 1e-12);
    EXPECT_LT(relative_error(parts.grads, model.grads), 1e-12);
}

}  // namespace

}  // namespace perigee::testing
