#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "data/data_source.h"
#include "megatron_files.h"

namespace perigee {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<DataSource> mock(int64_t length, int64_t vocab, Split split = Split::train, uint64_t seed = 1) {
    DataOptions options;
    options.mock_data = true;
    options.sequence_length = length;
    auto const files = make_file_system();
    return open_data(options, split, seed, vocab, *files);
}

TEST(MockData, FillsSamplesOfAnyLengthAndVocabulary) {
    for (int64_t const length : {1, 2, 15, 16, 17, 100, 4096}) {
        for (int64_t const vocab : {8, 257, 128256}) {
            auto const batch = make_batch(*mock(length, vocab), 3, 2);
            ASSERT_EQ(batch.tokens(), 2 * length);
            ASSERT_EQ(batch.targets_T.size(), batch.ids_T.size());
            ASSERT_EQ(batch.weights_T.size(), batch.ids_T.size());
            ASSERT_EQ(batch.positions_T.size(), batch.ids_T.size());
            ASSERT_EQ(batch.cu_seqlens.back(), 2 * length);
            ASSERT_NE(std::find(batch.cu_seqlens.begin(), batch.cu_seqlens.end(), length), batch.cu_seqlens.end());
            for (int32_t const id : batch.ids_T) ASSERT_TRUE(0 <= id && id < vocab);
            for (int32_t const id : batch.targets_T) ASSERT_TRUE(0 <= id && id < vocab);
        }
    }
}

TEST(MockData, IsAFunctionOfSeedSplitAndNumber) {
    auto const ids = [](Split split, uint64_t seed, int64_t index) {
        return make_batch(*mock(256, 257, split, seed), index, 1).ids_T;
    };
    EXPECT_EQ(ids(Split::train, 1, 5), ids(Split::train, 1, 5));
    EXPECT_NE(ids(Split::train, 1, 5), ids(Split::train, 2, 5));
    EXPECT_NE(ids(Split::train, 1, 5), ids(Split::train, 1, 6));
    EXPECT_NE(ids(Split::train, 1, 5), ids(Split::validation, 1, 5));
    EXPECT_EQ(ids(Split::validation, 1, 5),
              ids(Split::validation, 1, 5 + mock(256, 257, Split::validation)->samples_per_epoch()));
}

TEST(MockData, DocumentsAreRaggedAndEndWithTheLastId) {
    auto const batch = make_batch(*mock(4096, 257), 0, 16);
    std::set<int32_t> lengths;
    for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
        int32_t const end = batch.cu_seqlens[i + 1];
        lengths.insert(end - batch.cu_seqlens[i]);
        auto const last = static_cast<size_t>(end - 1);
        if (end % 4096 != 0) {
            EXPECT_EQ(batch.ids_T[last], 256);
            EXPECT_EQ(batch.weights_T[last], 0.0f);
        }
    }
    EXPECT_GT(lengths.size(), 20u);
    EXPECT_LT(*lengths.begin(), 64);
    EXPECT_GT(*lengths.rbegin(), 1024);
}

// Few successors per token, the same in training and validation: a model can learn it, and it carries over.
TEST(MockData, ShortHistoryPredictsTheNextTokenInBothSplits) {
    auto const successors = [](Split split) {
        auto const batch = make_batch(*mock(4096, 257, split), 0, 60);
        std::map<int32_t, std::set<int32_t>> next;
        for (size_t i = 0; i < batch.ids_T.size(); ++i) {
            if (batch.weights_T[i] == 0 || batch.targets_T[i] == 256) continue;
            next[batch.ids_T[i]].insert(batch.targets_T[i]);
        }
        return next;
    };
    auto const train = successors(Split::train), validation = successors(Split::validation);
    ASSERT_GT(train.size(), 200u);
    double total = 0, shared = 0, sizes = 0;
    for (auto const& [token, next] : train) {
        sizes += static_cast<double>(next.size());
        auto const found = validation.find(token);
        if (found == validation.end()) continue;
        for (int32_t const id : found->second) {
            shared += next.contains(id);
            ++total;
        }
    }
    // Four by the grammar; where a phrase starts over, the pair of its ends adds others.
    EXPECT_LT(sizes / static_cast<double>(train.size()), 16);
    EXPECT_GT(shared / total, 0.4);
}

TEST(MockData, TinyVocabulariesAreRefused) {
    EXPECT_THAT(testing::error_of(Category::config, [] { mock(16, 7); }), HasSubstr("at least 8 tokens, not 7"));
}

}  // namespace
}  // namespace perigee
