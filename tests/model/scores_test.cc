// Scores of chosen tokens: nll and what greedy decoding would take, against the formulas, one token after the other,
// and under every layout.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>

#include "model/naive_llama.h"
#include "model/tiny_model.h"
#include "support/ragged_samples.h"
#include "support/thread_comm.h"

namespace perigee::testing {

namespace {

int32_t best_below(std::vector<double> const& logits, int64_t allowed) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.begin() + allowed) - logits.begin());
}

TEST(TokenScores, AreThoseOfTheFormulas) {
    for (bool const tied : {false, true}) {
        ModelOptions options = tiny_options();
        options.tie_word_embeddings = tied;
        TinyModel<double> model(options, tiny_moba(), 51);
        Batch const batch = random_batch({13, 1, 9, 30}, options.vocab_size, 52);
        auto const logits = NaiveLlama(options, model.layout, model.weights).logits(batch);
        for (int64_t const allowed : {options.vocab_size, int64_t{4}, int64_t{1}}) {
            TokenScores const found = model.scores(batch, all(AttentionKind::full), allowed);
            size_t place = 0;
            for (size_t t = 0; t < logits.size(); ++t) {
                if (batch.weights_T[t] == 0) continue;
                ASSERT_LT(place, found.nll.size());
                EXPECT_NEAR(found.nll[place], NaiveLlama::nll(logits[t], batch.targets_T[t]), 1e-10);
                EXPECT_EQ(found.best.at(place), best_below(logits[t], allowed)) << "token " << t;
                ++place;
            }
            EXPECT_EQ(place, found.nll.size());
            EXPECT_EQ(place, found.best.size());
        }
    }
}

TEST(TokenScores, NameTheLikeliestIds) {
    ModelOptions const options = tiny_options();
    TinyModel<double> model(options, tiny_moba(), 57);
    Batch const batch = random_batch({13, 30}, options.vocab_size, 58);
    auto const logits = NaiveLlama(options, model.layout, model.weights).logits(batch);
    constexpr size_t kTop = 4;
    TokenScores const found = model.scores(batch, all(AttentionKind::full), options.vocab_size, kTop);
    size_t place = 0;
    for (size_t t = 0; t < logits.size(); ++t) {
        if (batch.weights_T[t] == 0) continue;
        std::vector<int32_t> order(logits[t].size());
        std::iota(order.begin(), order.end(), 0);
        std::ranges::stable_sort(order, std::greater(), [&](int32_t id) { return logits[t][static_cast<size_t>(id)]; });
        for (size_t i = 0; i < kTop; ++i) {
            EXPECT_EQ(found.top_ids.at(place * kTop + i), order[i]);
            EXPECT_NEAR(found.top_logprobs.at(place * kTop + i), -NaiveLlama::nll(logits[t], order[i]), 1e-10);
            if (order[i] != batch.targets_T[t]) continue;
            EXPECT_EQ(found.top_logprobs.at(place * kTop + i), -found.nll.at(place));
        }
        EXPECT_EQ(found.best.at(place), found.top_ids.at(place * kTop));
        ++place;
    }
    EXPECT_EQ(found.top_ids.size(), place * kTop);
}

TEST(TokenScores, AddUpToTheLoss) {
    ModelOptions const options = tiny_options();
    TinyModel<float> model(options, tiny_moba(), 53);
    Batch batch = random_batch({300, 41}, options.vocab_size, 54);
    for (auto const& kinds : {all(AttentionKind::moba), mixed()}) {
        TokenScores const found = model.scores(batch, kinds, 0);
        EXPECT_TRUE(found.best.empty());
        double sum = 0;
        size_t place = 0;
        for (float const weight : batch.weights_T)
            if (weight != 0) sum += static_cast<double>(weight) * found.nll.at(place++);
        EXPECT_NEAR(sum / model.loss(batch, kinds), 1, 1e-6);
    }
}

TEST(TokenScores, AFewTokensFarApartAreAmongThoseOfAll) {
    ModelOptions const options = tiny_options();
    TinyModel<float> model(options, tiny_moba(), 55);
    Batch every = random_batch({90, 60}, options.vocab_size, 56), few = every;
    std::ranges::fill(every.weights_T, 1.0f);
    std::ranges::fill(few.weights_T, 0.0f);
    std::vector<size_t> const places = {0, 1, 7, 88, 90, 148, 149};
    for (size_t const t : places) few.weights_T[t] = 0.25f;  // the weight itself does not matter
    TokenScores const all = model.scores(every, mixed(), options.vocab_size);
    TokenScores const some = model.scores(few, mixed(), options.vocab_size);
    ASSERT_EQ(some.nll.size(), places.size());
    for (size_t i = 0; i < places.size(); ++i) {
        EXPECT_NEAR(some.nll[i], all.nll.at(places[i]), 1e-5);
        EXPECT_EQ(some.best[i], all.best.at(places[i]));
    }
    std::ranges::fill(few.weights_T, 0.0f);
    EXPECT_TRUE(model.scores(few, mixed(), 3).nll.empty());
}

TEST(TokenScores, ChunksDoNotShow) {
    // A vocabulary so large that 300 tokens take three chunks.
    ModelOptions options = tiny_options();
    options.vocab_size = 70001;
    options.num_hidden_layers = 1;
    TinyModel<double> model(options, tiny_moba(), 63);
    Batch every = random_batch({300}, options.vocab_size, 64);
    std::ranges::fill(every.weights_T, 1.0f);
    Batch last = every;
    std::fill(last.weights_T.begin(), last.weights_T.end() - 20, 0.0f);
    std::vector<AttentionKind> const kinds{AttentionKind::full};
    TokenScores const all = model.scores(every, kinds, 70000), some = model.scores(last, kinds, 70000);
    ASSERT_EQ(all.nll.size(), 300u);
    ASSERT_EQ(all.best.size(), 300u);
    for (size_t i = 0; i < 20; ++i) {
        EXPECT_NEAR(some.nll.at(i), all.nll[280 + i], 1e-10);
        EXPECT_EQ(some.best.at(i), all.best[280 + i]);
    }
    EXPECT_NEAR(std::accumulate(all.nll.begin(), all.nll.end(), 0.0) / model.loss(every, kinds), 1, 1e-12);
}

TEST(TokenScores, BestIsWhatTheNextLogitsSay) {
    ModelOptions const options = tiny_options();
    TinyModel<float> model(options, tiny_moba(), 57);
    Batch batch = random_batch({23}, options.vocab_size, 58);
    std::ranges::fill(batch.weights_T, 1.0f);
    TokenScores const found = model.scores(batch, mixed(), options.vocab_size);
    for (size_t length = 1; length <= 23; ++length) {
        Batch text = batch;
        text.ids_T.resize(length), text.targets_T.resize(length), text.weights_T.resize(length);
        text.positions_T.resize(length);
        text.cu_seqlens = {0, static_cast<int32_t>(length)};
        auto const logits = model.next_logits(text, mixed());
        EXPECT_EQ(found.best[length - 1], std::max_element(logits.begin(), logits.end()) - logits.begin());
    }
}

TEST(TokenScores, OfEqualLogitsTheLowestIdIsBestAndNaNIsNone) {
    ModelOptions options = tiny_options();
    TinyModel<double> model(options, tiny_moba(), 59);
    auto const& entry = model.layout.entry("lm_head.weight");
    Batch batch = random_batch({6}, options.vocab_size, 60);
    std::ranges::fill(batch.weights_T, 1.0f);
    auto const head = model.weights.begin() + entry.offset;
    std::fill(head, head + entry.local.size(), 0.0);
    for (int32_t const id : model.scores(batch, mixed(), options.vocab_size).best) EXPECT_EQ(id, 0);
    std::fill(head + 10 * entry.local[1], head + 11 * entry.local[1], std::numeric_limits<double>::quiet_NaN());
    for (int32_t const id : model.scores(batch, mixed(), options.vocab_size).best) EXPECT_EQ(id, -1);
    for (int32_t const id : model.scores(batch, mixed(), 10).best) EXPECT_EQ(id, 0);
}

/// As many key/value heads as the largest cut.
struct Job {
    ModelOptions options;
    std::vector<Selection> selections = {MobaOptions{.block_size = 4, .top_k = 3},
                                         MobaOptions{.block_size = 4, .top_k = 3}, FullAttention{}};
    Batch batch = random_batch({37, 5, 29, 2}, 48, 61);
    int64_t allowed = 41;
    int64_t top = 0;
    bool equal_logits = false;

    Job() {
        options = tiny_options();
        options.vocab_size = 48;
        options.hidden_size = 24;
        options.num_attention_heads = options.num_key_value_heads = 8;
        options.head_dim = 4;
        options.intermediate_size = 40;
    }

    TokenScores run(ParallelOptions const& parallel, HostComm& world) const {
        auto const device = make_host_device();
        Mesh const mesh(parallel, world);
        auto const ops = make_host_ops(*device, 1);
        ParamLayout const layout(llama_params(options), mesh.shape().tp, mesh.tp_rank());
        std::vector<float> weights = weights_of(layout, 0.3);
        if (equal_logits) {
            auto const& head = layout.entry("lm_head.weight");
            std::fill_n(weights.begin() + head.offset, head.local.size(), 0.0f);
        }
        Llama model(options, layout, mesh, *ops);
        Arena arena(*device);
        FlatWeights flat(layout, {weights.data(), {layout.size()}});
        return model.scores(flat, batch, selections, allowed, arena, top);
    }
};

struct Layout {
    int cp, tp;
    ContextMode mode = ContextMode::automatic;
};

void expect_same_under_every_layout(Job const& job) {
    auto const alone = make_single_host_comm();
    TokenScores const want = job.run({}, *alone);
    ASSERT_GT(want.nll.size(), 20u);
    for (Layout const l : {Layout{1, 2}, {2, 1}, {2, 1, ContextMode::allgather}, {2, 2}, {4, 2}, {1, 4}}) {
        std::mutex mutex;
        run_ranks(l.cp * l.tp, [&](HostComm& world) {
            TokenScores const found =
                job.run({.tensor = l.tp, .context = l.cp, .data = 1, .context_mode = l.mode}, world);
            std::lock_guard const lock(mutex);
            ASSERT_EQ(found.nll.size(), want.nll.size());
            for (size_t i = 0; i < want.nll.size(); ++i) EXPECT_NEAR(found.nll[i], want.nll[i], 1e-5);
            EXPECT_EQ(found.best, want.best) << "cp " << l.cp << " tp " << l.tp;
            EXPECT_EQ(found.top_ids, want.top_ids) << "cp " << l.cp << " tp " << l.tp;
            ASSERT_EQ(found.top_logprobs.size(), want.top_logprobs.size());
            for (size_t i = 0; i < want.top_logprobs.size(); ++i)
                EXPECT_NEAR(found.top_logprobs[i], want.top_logprobs[i], 1e-5);
        });
    }
}

TEST(TokenScores, EveryLayoutGivesThoseOfOneRank) {
    Job job;
    expect_same_under_every_layout(job);
    job.batch = random_batch({64}, 48, 62);  // as zigzag
    job.selections.assign(3, FullAttention{});
    expect_same_under_every_layout(job);
    job.top = 3;
    expect_same_under_every_layout(job);
    job.allowed = 0;
    expect_same_under_every_layout(job);
}

TEST(TokenScores, EqualLogitsOfSeveralRanksAreTheLowestIds) {
    Job job;
    job.equal_logits = true;
    expect_same_under_every_layout(job);
    auto const alone = make_single_host_comm();
    for (int32_t const id : job.run({}, *alone).best) EXPECT_EQ(id, 0);
}

}  // namespace

}  // namespace perigee::testing
