#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "data/data_source.h"
#include "megatron_files.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kVocabulary = 80;
constexpr int32_t kMarker = 79, kFirstKey = 40;

DataOptions far_recall(MockLoss loss = MockLoss::answers) {
    DataOptions options;
    options.mock_data = true;
    options.mock.task = MockTask::far_recall;
    options.mock.loss = loss;
    options.sequence_length = 256;
    return options;
}
std::unique_ptr<DataSource> open(DataOptions const& options, Split split = Split::train, uint64_t seed = 1,
                                 int64_t vocab = kVocabulary) {
    auto const files = make_file_system();
    return open_data(options, split, seed, vocab, *files);
}

TEST(FarRecall, TheFirstHalfHoldsEveryAnswer) {
    auto const source = open(far_recall());
    std::set<int32_t> answers;
    for (int64_t index = 0; index < 50; ++index) {
        auto const batch = make_batch(*source, index, 1);
        ASSERT_EQ(batch.tokens(), 256);
        ASSERT_THAT(batch.cu_seqlens, ::testing::ElementsAre(0, 256));
        auto const lookups = source->lookups(index);
        ASSERT_EQ(lookups.size(), 3u);
        for (Lookup const& lookup : lookups) {
            auto const from = static_cast<size_t>(lookup.from);
            ASSERT_EQ(batch.ids_T[from - 1], kMarker);
            ASSERT_EQ(batch.weights_T[from], 1.0f);
            ASSERT_FALSE(lookup.places.empty());
            for (int64_t const place : lookup.places) {
                ASSERT_LT(place, 128);
                auto const at = static_cast<size_t>(place);
                EXPECT_EQ(batch.ids_T[at - 1], batch.ids_T[from]);
                EXPECT_EQ(batch.ids_T[at], batch.targets_T[from]);
                EXPECT_EQ(place / 16, lookup.places.front() / 16) << "a fact belongs to one topic";
            }
            auto const stated = static_cast<size_t>(std::ranges::count(batch.ids_T, batch.ids_T[from]));
            EXPECT_EQ(stated, lookup.places.size() + 1) << "every place, and the question itself";
            answers.insert(batch.targets_T[from]);
        }
    }
    EXPECT_GT(answers.size(), 35u) << "of 40 values";
}

TEST(FarRecall, AKeyHasOneValueInADocumentAndAnotherInTheNext) {
    auto const source = open(far_recall());
    std::map<int32_t, std::set<int32_t>> values;
    for (int64_t index = 0; index < 20; ++index) {
        auto const batch = make_batch(*source, index, 1);
        std::map<int32_t, int32_t> here;
        for (size_t t = 0; t < 256; ++t) {
            if (batch.ids_T[t] < kFirstKey || batch.ids_T[t] == kMarker) continue;
            auto const [at, is_new] = here.emplace(batch.ids_T[t], batch.targets_T[t]);
            ASSERT_EQ(at->second, batch.targets_T[t]) << "token " << t;
            values[batch.ids_T[t]].insert(batch.targets_T[t]);
        }
        EXPECT_EQ(here.size(), 32u) << "16 topics of 2 facts";
    }
    for (auto const& [key, seen] : values) EXPECT_GT(seen.size(), 4u) << "key " << key;
}

TEST(FarRecall, LossIsOnAnswersAloneOrOnAllButNeverOnMoreInValidation) {
    auto const share = [](MockLoss loss, Split split) {
        auto const batch = make_batch(*open(far_recall(loss), split), 0, 4);
        return std::accumulate(batch.weights_T.begin(), batch.weights_T.end(), 0.0) / 4;
    };
    EXPECT_EQ(share(MockLoss::answers, Split::train), 3);
    EXPECT_EQ(share(MockLoss::all, Split::train), 256);
    EXPECT_EQ(share(MockLoss::all, Split::validation), 3);
    auto const ids = [](MockLoss loss) { return make_batch(*open(far_recall(loss)), 5, 2).ids_T; };
    EXPECT_EQ(ids(MockLoss::all), ids(MockLoss::answers));
}

TEST(FarRecall, IsAFunctionOfSeedSplitAndNumber) {
    auto const ids = [](Split split, uint64_t seed, int64_t index) {
        return make_batch(*open(far_recall(), split, seed), index, 1).ids_T;
    };
    EXPECT_EQ(ids(Split::train, 1, 5), ids(Split::train, 1, 5));
    EXPECT_NE(ids(Split::train, 1, 5), ids(Split::train, 2, 5));
    EXPECT_NE(ids(Split::train, 1, 5), ids(Split::train, 1, 6));
    EXPECT_NE(ids(Split::train, 1, 5), ids(Split::validation, 1, 5));
    int64_t const epoch = open(far_recall(), Split::validation)->samples_per_epoch();
    EXPECT_EQ(ids(Split::validation, 1, 5), ids(Split::validation, 1, 5 + epoch));
}

TEST(FarRecall, FillsSamplesOfAnyLengthWithRoomForQuestions) {
    for (int64_t const length : {64, 65, 100, 255, 257, 1000}) {
        auto options = far_recall();
        options.sequence_length = length;
        auto const source = open(options, Split::train, 1, 4096);
        auto const batch = make_batch(*source, 0, 2);
        ASSERT_EQ(batch.tokens(), 2 * length);
        EXPECT_EQ(batch.cu_seqlens[1], length);
        EXPECT_EQ(std::accumulate(batch.weights_T.begin(), batch.weights_T.end(), 0.0), 6);
        EXPECT_EQ(batch.weights_T[static_cast<size_t>(length - 1)], 1.0f) << "the last target is an answer";
    }
}

TEST(FarRecall, WhatDoesNotFitIsRefusedWithBothNumbers) {
    auto const refusal = [](DataOptions const& options, int64_t vocab) {
        return testing::error_of(Category::config, [&] { open(options, Split::train, 1, vocab); });
    };
    EXPECT_THAT(refusal(far_recall(), 64), AllOf(HasSubstr("32 facts"), HasSubstr("64 has 31 keys")));
    auto options = far_recall();
    options.mock.questions = 17;
    EXPECT_THAT(refusal(options, 80), AllOf(HasSubstr("17 questions"), HasSubstr("256, which states 16")));
    options.mock.questions = 1;
    options.sequence_length = 20;
    EXPECT_THAT(refusal(options, 80), HasSubstr("which states 0"));
    options = far_recall();
    options.mock.topic_tokens = 15;
    EXPECT_THAT(problems(options), ::testing::Contains(HasSubstr("mock.topic_tokens (15) must be even")));
    options.mock.topic_tokens = 4;
    options.mock.facts_per_topic = 3;
    EXPECT_THAT(problems(options), ::testing::Contains(HasSubstr("mock.facts_per_topic (3)")));
}

TEST(MockData, HasNothingToLookUp) {
    DataOptions options;
    options.mock_data = true;
    EXPECT_TRUE(open(options)->lookups(3).empty());
}

}  // namespace
}  // namespace perigee
