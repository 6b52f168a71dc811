// Forced decoding and greedy generation judge items alike, on every layout.
#include "train/scorers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "data/packing.h"
#include "support/random.h"
#include "support/thread_comm.h"
#include "train/sharp_session.h"
#include "train/text_model.h"

namespace perigee::testing {

namespace {

constexpr int64_t kAllowed = SharpSession::kAllowed;

struct Job : SharpSession {
    using SharpSession::SharpSession;

    ScoredModel model() { return {session, session.selections(0), kAllowed}; }

    std::vector<float> logits(std::vector<int32_t> const& text) {
        return session.model().next_logits(session.weights(), unfinished_document(text), session.selections(0),
                                           session.arena());
    }
    int32_t best(std::vector<int32_t> const& text) {
        auto const all = logits(text);
        return static_cast<int32_t>(std::max_element(all.begin(), all.begin() + kAllowed) - all.begin());
    }
};

/// Prompts of many lengths, answered by what the model itself writes; in two of three one token is another one.
std::vector<Item> mixed_items(Job& job) {
    Philox const random(3, Purpose::mock_data, 2);
    uint64_t next = 0;
    auto const draw = [&](int64_t below) {
        return static_cast<int64_t>(random.below(next++, static_cast<uint64_t>(below)));
    };
    std::vector<Item> items;
    for (int64_t i = 0; i < 12; ++i) {
        Item item{.task = "t", .number = i};
        for (int64_t t = 5 + draw(60); t > 0; --t) item.prompt.push_back(static_cast<int32_t>(draw(kAllowed)));
        std::vector<int32_t> text = item.prompt;
        for (int64_t t = 1 + draw(6); t > 0; --t) text.push_back(job.best(text));
        item.answer.assign(text.begin() + std::ssize(item.prompt), text.end());
        if (i % 3 != 0) {
            int32_t& token = item.answer[static_cast<size_t>(draw(std::ssize(item.answer)))];
            token = static_cast<int32_t>((token + 1) % kAllowed);
        }
        item.length = std::ssize(text) - 1;
        items.push_back(std::move(item));
    }
    return items;
}

TEST(Scorers, ForcedDecodingPassesWhatGenerationWrites) {
    auto const world = make_single_host_comm();
    Job job(*world);
    auto const items = mixed_items(job);
    auto const forced = ForcedDecoding(job.model()).score(items);
    auto const generated = GreedyDecoding(job.model()).score(items);
    int64_t passed = 0;
    for (size_t i = 0; i < items.size(); ++i) {
        EXPECT_EQ(passes(items[i], forced[i]), i % 3 == 0) << "item " << i;
        EXPECT_EQ(passes(items[i], forced[i]), passes(items[i], generated[i])) << "item " << i;
        EXPECT_LE(generated[i].correct, forced[i].correct);  // which goes on after a wrong token
        EXPECT_TRUE(std::isnan(generated[i].nll));
        passed += passes(items[i], forced[i]);
    }
    EXPECT_EQ(passed, 4);
}

TEST(Scorers, ForcedNllIsThatOfTokenAfterToken) {
    auto const world = make_single_host_comm();
    Job job(*world);
    auto const items = mixed_items(job);
    auto const forced = ForcedDecoding(job.model()).score(items);
    for (size_t i = 0; i < items.size(); ++i) {
        std::vector<int32_t> text = items[i].prompt;
        double nll = 0;
        int64_t correct = 0;
        for (int32_t const token : items[i].answer) {
            auto const logits = job.logits(text);
            double sum = 0;
            for (float const x : logits) sum += std::exp(static_cast<double>(x));
            nll += std::log(sum) - static_cast<double>(logits[static_cast<size_t>(token)]);
            correct += job.best(text) == token;
            text.push_back(token);
        }
        EXPECT_NEAR(forced[i].nll, nll, 1e-4);
        EXPECT_EQ(forced[i].correct, correct);
    }
}

TEST(TextModel, KeepsKeysAndValuesHoweverLongTheTextGrows) {
    auto const alone = make_single_host_comm();
    Job job(*alone);
    TextModel text(job.session, job.session.selections(0));
    Philox const random(5, Purpose::mock_data, 1);
    std::vector<float> last;
    for (uint64_t i = 0; i < 250; ++i) {
        int32_t const id = static_cast<int32_t>(random.below(i, kAllowed));
        last = text.append(std::span(&id, 1));
    }
    EXPECT_EQ(std::ssize(text.text()), 250);
    EXPECT_LT(relative_error(last, job.logits(text.text())), 1e-4);
}

TEST(Scorers, TokensBeyondTheTokenizerAreNeverDecoded) {
    auto const world = make_single_host_comm();
    Job job(*world);
    Item item{.task = "t", .length = 5, .prompt = {1, 2, 3, 4, 5}, .answer = {job.best({1, 2, 3, 4, 5})}};
    // The classifier's row of a token of the padding becomes twice that of the best one.
    auto const& head = job.session.layout().entry("lm_head.weight");
    auto* const rows = job.session.weights().flat().as<float>() + head.offset;
    int64_t const width = head.local[1];
    for (int64_t i = 0; i < width; ++i) rows[95 * width + i] = 2 * rows[item.answer[0] * width + i];
    auto const logits = job.logits(item.prompt);
    ASSERT_EQ(std::ranges::max_element(logits) - logits.begin(), 95);
    EXPECT_TRUE(passes(item, ForcedDecoding(job.model()).score({&item, 1})[0]));
    EXPECT_TRUE(passes(item, GreedyDecoding(job.model()).score({&item, 1})[0]));
}

TEST(Scorers, EveryLayoutGivesTheScoresOfOneRank) {
    std::vector<Item> items;
    std::vector<ItemScore> want;
    {
        auto const world = make_single_host_comm();
        Job job(*world);
        items = mixed_items(job);
        want = ForcedDecoding(job.model()).score(items);
    }
    for (ParallelOptions const& parallel : {ParallelOptions{.data = 2},
                                            {.data = 3},
                                            {.tensor = 2, .data = 1},
                                            {.context = 2, .data = 1},
                                            {.context = 2, .data = 1, .context_mode = ContextMode::allgather},
                                            {.tensor = 2, .context = 2, .data = 2}}) {
        int const ranks = static_cast<int>(parallel.tensor * parallel.context * parallel.data);
        std::mutex mutex;
        run_ranks(ranks, [&](HostComm& world) {
            Job job(world, parallel);
            auto const forced = ForcedDecoding(job.model()).score(items);
            auto const generated = GreedyDecoding(job.model()).score(items);
            std::lock_guard const lock(mutex);
            for (size_t i = 0; i < items.size(); ++i) {
                EXPECT_EQ(forced[i].correct, want[i].correct);
                EXPECT_NEAR(forced[i].nll, want[i].nll, 1e-3);
                EXPECT_EQ(passes(items[i], generated[i]), i % 3 == 0);
            }
        });
    }
}

}  // namespace

}  // namespace perigee::testing
