#include "data/data_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/philox.h"
#include "data/chat_record.h"
#include "megatron_files.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using testing::MegatronFiles;

constexpr int64_t kVocabulary = 60000;

std::unique_ptr<FileSystem> const& real_files() {
    static auto const files = make_file_system();
    return files;
}

bool same(Batch const& a, Batch const& b) {
    return a.ids_T == b.ids_T && a.targets_T == b.targets_T && a.weights_T == b.weights_T &&
           a.positions_T == b.positions_T && a.cu_seqlens == b.cu_seqlens;
}

class DataSourceTest : public ::testing::Test {
  protected:
    /// A data set whose tokens count up from `first`, so that a token tells its place.
    std::string counting(std::string const& name, std::vector<int64_t> const& lengths, int64_t first = 0) {
        MegatronFiles files;
        for (int64_t const length : lengths) {
            auto& sequence = files.sequences.emplace_back();
            for (int64_t i = 0; i < length; ++i) sequence.push_back(first++);
        }
        files.write(folder_ / name);
        return (folder_ / name).string();
    }
    static std::vector<int64_t> ragged(uint64_t seed, int documents, uint64_t longest) {
        Philox const random(seed, Purpose::mock_data);
        std::vector<int64_t> lengths;
        for (int i = 0; i < documents; ++i) {
            lengths.push_back(static_cast<int64_t>(random.below(static_cast<uint64_t>(i), longest + 1)));
        }
        return lengths;
    }
    static DataOptions options_for(std::vector<DatasetOptions> train, int64_t sequence_length) {
        DataOptions options;
        options.train = std::move(train);
        options.sequence_length = sequence_length;
        return options;
    }
    static std::unique_ptr<DataSource> open(DataOptions const& options, Split split = Split::train, uint64_t seed = 1,
                                            int64_t vocab = kVocabulary) {
        return open_data(options, split, seed, vocab, *real_files());
    }
    static std::string open_error(DataOptions const& options, Split split = Split::train) {
        return error_of(Category::data, [&] { open(options, split); });
    }

    testing::TemporaryFolder folder_;
};

TEST_F(DataSourceTest, PacksDocumentsWithMasksAndPositions) {
    auto options = options_for({{counting("set", {3, 0, 1, 4, 5})}}, 6);
    options.shuffle = false;
    auto const batch = make_batch(*open(options), 0, 2);
    EXPECT_THAT(batch.ids_T, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
    EXPECT_THAT(batch.targets_T, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
    // Documents are 012 | 3 | 4567 | 89abc; the second sample starts inside the third.
    EXPECT_THAT(batch.weights_T, ElementsAre(1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1));
    EXPECT_THAT(batch.positions_T, ElementsAre(0, 1, 2, 0, 0, 1, 0, 1, 0, 1, 2, 3));
    EXPECT_THAT(batch.cu_seqlens, ElementsAre(0, 3, 4, 6, 8, 12));
}

TEST_F(DataSourceTest, ADocumentEndingWithTheSampleDoesNotPredictTheNext) {
    auto options = options_for({{counting("set", {4, 4, 4})}}, 4);
    options.shuffle = false;
    auto const batch = make_batch(*open(options), 0, 2);
    EXPECT_THAT(batch.weights_T, ElementsAre(1, 1, 1, 0, 1, 1, 1, 0));
    EXPECT_THAT(batch.cu_seqlens, ElementsAre(0, 4, 8));
}

TEST_F(DataSourceTest, WithoutDocumentMaskASampleIsOneSegment) {
    auto options = options_for({{counting("set", {3, 0, 1, 4, 5})}}, 6);
    options.shuffle = false;
    options.document_mask = false;
    auto const batch = make_batch(*open(options), 0, 2);
    EXPECT_THAT(batch.weights_T, ElementsAre(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1));
    EXPECT_THAT(batch.positions_T, ElementsAre(0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5));
    EXPECT_THAT(batch.cu_seqlens, ElementsAre(0, 6, 12));
}

TEST_F(DataSourceTest, TheMaskFileWeighsTokensAsTargets) {
    auto options = options_for({{counting("set", {3, 5})}}, 6);
    options.shuffle = false;
    testing::write_bytes(folder_ / "set.mask", MegatronFiles::mask({0, 1, 0, 1, 0, 1, 1, 1}));
    EXPECT_THAT(make_batch(*open(options), 0, 1).weights_T, ElementsAre(1, 0, 0, 0, 1, 1));
    options.document_mask = false;
    EXPECT_THAT(make_batch(*open(options), 0, 1).weights_T, ElementsAre(1, 0, 1, 0, 1, 1));
}

// Checked against a slow walk over the documents, sample by sample.
TEST_F(DataSourceTest, PacksRaggedDocumentsLikeASlowWalk) {
    auto const lengths = ragged(4, 200, 17);
    std::vector<int64_t> document_of, place_in;
    for (size_t document = 0; document < lengths.size(); ++document) {
        for (int64_t i = 0; i < lengths[document]; ++i) {
            document_of.push_back(static_cast<int64_t>(document));
            place_in.push_back(i);
        }
    }
    constexpr int64_t kLength = 32;
    auto const source = open(options_for({{counting("set", lengths)}}, kLength));
    int64_t const samples = source->samples_per_epoch();
    ASSERT_EQ(samples, (static_cast<int64_t>(document_of.size()) - 1) / kLength);
    std::set<int32_t> starts;
    for (int64_t index = 0; index < samples; ++index) {
        auto const batch = make_batch(*source, index, 1);
        ASSERT_EQ(batch.tokens(), kLength);
        starts.insert(batch.ids_T[0]);
        int64_t segment = -1;
        for (int64_t i = 0; i < kLength; ++i) {
            auto const at = static_cast<size_t>(batch.ids_T[0] + i);
            auto const k = static_cast<size_t>(i);
            ASSERT_EQ(batch.ids_T[k], static_cast<int32_t>(at));
            ASSERT_EQ(batch.targets_T[k], static_cast<int32_t>(at) + 1);
            ASSERT_EQ(batch.weights_T[k], document_of[at] == document_of[at + 1] ? 1.0f : 0.0f);
            bool const first = i == 0 || document_of[at] != document_of[at - 1];
            if (first) {
                ASSERT_EQ(batch.cu_seqlens[static_cast<size_t>(++segment)], i);
            }
            ASSERT_EQ(batch.positions_T[k], i - batch.cu_seqlens[static_cast<size_t>(segment)]);
        }
        ASSERT_EQ(batch.cu_seqlens.size(), static_cast<size_t>(segment) + 2);
        ASSERT_EQ(batch.cu_seqlens.back(), kLength);
    }
    EXPECT_EQ(static_cast<int64_t>(starts.size()), samples);
}

TEST_F(DataSourceTest, MicroBatchSizeDoesNotChangeTheSamples) {
    auto const source =
        open(options_for({{counting("a", ragged(1, 100, 30))}, {counting("b", ragged(2, 50, 30)), 0.5}}, 16));
    Batch const whole = make_batch(*source, 5, 24);
    for (int64_t const size : {1, 2, 3, 8}) {
        Batch joined;
        for (int64_t first = 5; first < 29; first += size) {
            Batch const part = make_batch(*source, first, size);
            joined.ids_T.insert(joined.ids_T.end(), part.ids_T.begin(), part.ids_T.end());
            joined.weights_T.insert(joined.weights_T.end(), part.weights_T.begin(), part.weights_T.end());
        }
        EXPECT_EQ(joined.ids_T, whole.ids_T);
        EXPECT_EQ(joined.weights_T, whole.weights_T);
    }
}

TEST_F(DataSourceTest, AResumedRunSeesTheSamplesTheUnbrokenOneWouldHave) {
    auto const options =
        options_for({{counting("a", ragged(1, 100, 30))}, {counting("b", ragged(2, 50, 30)), 0.5}}, 16);
    auto const unbroken = open(options);
    int64_t const epoch = unbroken->samples_per_epoch();
    std::vector<Batch> expected;
    for (int64_t index = 0; index < 3 * epoch; ++index) expected.push_back(make_batch(*unbroken, index, 1));
    for (int64_t const from : {int64_t{1}, epoch - 1, epoch, 2 * epoch + 3}) {
        auto const resumed = open(options);
        for (int64_t index = from; index < 3 * epoch; ++index) {
            ASSERT_TRUE(same(make_batch(*resumed, index, 1), expected[static_cast<size_t>(index)]));
        }
    }
}

TEST_F(DataSourceTest, EveryEpochCoversEachSampleOnceInAnotherOrder) {
    auto const source = open(options_for({{counting("set", {700, 900, 1})}}, 16));
    int64_t const samples = source->samples_per_epoch();
    ASSERT_EQ(samples, 100);
    std::set<std::vector<int32_t>> orders;
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
        std::vector<int32_t> starts;
        for (int64_t i = 0; i < samples; ++i) {
            starts.push_back(make_batch(*source, epoch * samples + i, 1).ids_T[0] / 16);
        }
        orders.insert(starts);
        std::sort(starts.begin(), starts.end());
        for (int64_t i = 0; i < samples; ++i) ASSERT_EQ(starts[static_cast<size_t>(i)], i);
    }
    EXPECT_EQ(orders.size(), 4u);
}

TEST_F(DataSourceTest, SeedsAndDataSetsHaveOrdersOfTheirOwn) {
    std::string const path = counting("set", {1601});
    auto const options = options_for({{path}, {path}}, 16);
    auto const first_starts = [&](uint64_t seed) {
        auto const source = open(options, Split::train, seed);
        std::vector<int32_t> even, odd;
        for (int64_t i = 0; i < 40; ++i) (i % 2 == 0 ? even : odd).push_back(make_batch(*source, i, 1).ids_T[0]);
        return std::pair(even, odd);
    };
    auto const [a, b] = first_starts(1);
    auto const [c, d] = first_starts(2);
    EXPECT_NE(a, b);
    EXPECT_NE(a, c);
    EXPECT_NE(b, d);
}

TEST_F(DataSourceTest, DataSetsAreMixedByWeight) {
    auto const options = options_for({{counting("a", {3000}), 3.0}, {counting("b", {3000}, 10000), 1.0}}, 10);
    auto const source = open(options);
    int64_t from_b = 0;
    for (int64_t i = 0; i < 4096; ++i) from_b += make_batch(*source, i, 1).ids_T[0] >= 10000;
    EXPECT_EQ(from_b, 1024);
    EXPECT_THAT(source->uneven_reads(), MatchesRegex(".*/a 1.5 times, .*/b 0.5 times"));
    EXPECT_EQ(open(options_for({{counting("c", {3000}), 1.0}, {counting("d", {3200}), 1.0}}, 10))->uneven_reads(), "");
}

// A change here changes the data of every run that is resumed.
TEST_F(DataSourceTest, TheOrderNeverChanges) {
    auto const options = options_for({{counting("a", {1601}), 3.0}, {counting("b", {801}, 10000), 1.0}}, 16);
    auto const source = open(options, Split::train, 1234);
    std::vector<int32_t> starts;
    for (int64_t const index : {0, 1, 2, 3, 4, 5, 6, 7, 1000, 1000000}) {
        starts.push_back(make_batch(*source, index, 1).ids_T[0]);
    }
    EXPECT_THAT(starts, ElementsAre(256, 208, 10400, 896, 1296, 1216, 10608, 1568, 32, 608));
}

TEST_F(DataSourceTest, HeldOutDocumentsAreNeverTrainedOn) {
    auto options = options_for({{counting("a", ragged(8, 100, 40))}, {counting("b", ragged(9, 80, 40), 20000)}}, 16);
    options.validation_fraction = 0.2;
    auto const train = open(options), validation = open(options, Split::validation);
    auto const tokens_of = [](DataSource const& source, int64_t count) {
        std::set<int32_t> tokens;
        for (int64_t i = 0; i < count; ++i) {
            auto const batch = make_batch(source, i, 1);
            tokens.insert(batch.ids_T.begin(), batch.ids_T.end());
            tokens.insert(batch.targets_T.begin(), batch.targets_T.end());
        }
        return tokens;
    };
    auto const trained = tokens_of(*train, 4 * train->samples_per_epoch());
    auto const held_out = tokens_of(*validation, validation->samples_per_epoch());
    std::vector<int32_t> both;
    std::set_intersection(trained.begin(), trained.end(), held_out.begin(), held_out.end(), std::back_inserter(both));
    EXPECT_TRUE(both.empty());
    EXPECT_FALSE(held_out.empty());
    EXPECT_LT(*std::prev(trained.lower_bound(20000)), *held_out.begin());
}

TEST_F(DataSourceTest, TheFewestLastDocumentsThatHoldTheFractionAreHeldOut) {
    auto options = options_for({{counting("set", {50, 20, 10, 5, 5, 10})}}, 4);
    std::map<double, int64_t> const first_held_out{{0.01, 90}, {0.1, 90}, {0.11, 85}, {0.2, 80}, {0.21, 70}, {0.5, 50}};
    for (auto const& [fraction, first] : first_held_out) {
        options.validation_fraction = fraction;
        auto const validation = open(options, Split::validation);
        int32_t lowest = 1000;
        for (int64_t i = 0; i < validation->samples_per_epoch(); ++i) {
            lowest = std::min(lowest, make_batch(*validation, i, 1).ids_T[0]);
        }
        EXPECT_EQ(lowest, first) << fraction;
        EXPECT_EQ(open(options)->samples_per_epoch(), (first - 1) / 4) << fraction;
    }
}

TEST_F(DataSourceTest, ASplitThatLeavesNothingToTrainOnIsRefused) {
    auto options = options_for({{counting("one", {100})}}, 4);
    options.validation_fraction = 0.1;
    EXPECT_THAT(open_error(options), AllOf(HasSubstr("one"), HasSubstr("10 of 100 tokens"), HasSubstr("1 documents")));
    options = options_for({{counting("two", {0, 100})}}, 4);
    options.validation_fraction = 0.1;
    EXPECT_THAT(open_error(options, Split::validation), HasSubstr("2 documents"));
}

TEST_F(DataSourceTest, AConversationOfSeveralDocumentsIsHeldOutAsAWhole) {
    std::string const prefix = counting("chats", {10, 10, 10, 10, 10, 10, 10, 10, 10, 10});
    testing::write_bytes(prefix + ".mask", testing::MegatronFiles::mask(std::vector<int>(100, 1)));
    auto options = options_for({{prefix}}, 1);
    options.validation_fraction = 0.2;
    auto const held_out = [&] {
        return std::pair{open(options)->samples_per_epoch(), open(options, Split::validation)->samples_per_epoch()};
    };
    std::pair const cut{int64_t{79}, int64_t{19}};
    EXPECT_EQ(held_out(), cut);
    for (auto const& [continued, expected] : {std::pair{"0101111110", std::pair{int64_t{19}, int64_t{79}}},
                                              {"0101111101", cut},
                                              {"0111111011", std::pair{int64_t{69}, int64_t{29}}},
                                              {"01111111111", cut},  // of other data
                                              {"", cut}}) {
        write_chat_record(*real_files(), prefix, {"{{ messages }}", "bytes", continued});
        EXPECT_EQ(held_out(), expected) << continued;
    }
    write_chat_record(*real_files(), prefix, {"{{ messages }}", "bytes", "0111111111"});
    EXPECT_THAT(open_error(options), HasSubstr("in whole documents and conversations, which leaves none"));
    testing::write_bytes(prefix + ".chat.json", R"({"template": "", "continued": 5})");
    EXPECT_THAT(open_error(options), HasSubstr("chats.chat.json: \"continued\" must be a text"));
}

TEST_F(DataSourceTest, ChatTemplatesThatDifferAreNamedThoseOfValidationToo) {
    auto const set = [&](std::string const& name, char const* text) {
        if (text != nullptr) write_chat_record(*real_files(), folder_ / name, {text, "bytes"});
        return DatasetOptions{(folder_ / name).string()};
    };
    DataOptions options = options_for({set("plain", nullptr), set("a", "A"), set("b", "B"), set("c", "A")}, 4);
    options.validation = {set("d", "A"), set("e", "C")};
    ChatRecords const found = chat_records_of(*real_files(), options);
    EXPECT_EQ(found.first->text, "A");
    EXPECT_EQ(found.prefix, options.train[1].path);
    EXPECT_THAT(found.others, ElementsAre(options.train[2].path, options.validation[1].path));
    options.train.resize(1);
    ChatRecords const validated = chat_records_of(*real_files(), options);
    EXPECT_FALSE(validated.first.has_value()) << "a model that saw no conversations has no template";
    EXPECT_THAT(validated.others, ElementsAre());
}

TEST_F(DataSourceTest, ValidationUsesEachSampleOnceWhateverTheSeed) {
    auto options = options_for({{counting("train", {100})}}, 4);
    options.validation = {{counting("a", {41}, 1000)}, {counting("b", {81}, 2000)}};
    auto const validation = open(options, Split::validation, 1), other_seed = open(options, Split::validation, 2);
    ASSERT_EQ(validation->samples_per_epoch(), 30);
    std::set<int32_t> starts;
    for (int64_t i = 0; i < 30; ++i) {
        auto const batch = make_batch(*validation, i, 1);
        starts.insert(batch.ids_T[0]);
        EXPECT_TRUE(same(batch, make_batch(*other_seed, i, 1)));
        EXPECT_TRUE(same(batch, make_batch(*validation, i + 30, 1)));
    }
    EXPECT_EQ(starts.size(), 30u);
    EXPECT_EQ(std::distance(starts.lower_bound(1000), starts.lower_bound(2000)), 10);
}

TEST_F(DataSourceTest, TooFewTokensForASampleIsAnErrorWithBothCounts) {
    EXPECT_THAT(open_error(options_for({{counting("set", {10, 6})}}, 16)),
                AllOf(HasSubstr("16 tokens"), HasSubstr("sequence_length + 1 = 17"), HasSubstr("set")));
    auto const source = open(options_for({{counting("set", {10, 7})}}, 16));
    EXPECT_EQ(source->samples_per_epoch(), 1);
    EXPECT_EQ(make_batch(*source, 0, 1).targets_T.back(), 16);
}

TEST_F(DataSourceTest, MissingFilesAreNamed) {
    EXPECT_THAT(open_error(options_for({{(folder_ / "nowhere").string()}}, 4)), HasSubstr("nowhere.idx"));
}

TEST_F(DataSourceTest, TokensOutsideTheVocabularyAreLocated) {
    MegatronFiles{.dtype_code = 4, .token_bytes = 4, .sequences = {{1, 2, 3}, {4, -7, 300, 5, 6}}, .borders = {}}.write(
        folder_ / "set");
    auto const read_error = [&](int64_t vocab) {
        auto const source = open(options_for({{(folder_ / "set").string()}}, 7), Split::train, 1, vocab);
        return error_of(Category::data, [&] { make_batch(*source, 0, 1); });
    };
    EXPECT_THAT(read_error(300), AllOf(HasSubstr("set.bin"), HasSubstr("document 1, token 1"), HasSubstr("id -7"),
                                       HasSubstr("vocabulary of 300")));
    MegatronFiles{.sequences = {{1, 2, 3}, {4, 7, 300, 5, 6}}, .borders = {}}.write(folder_ / "set");
    EXPECT_THAT(read_error(300), AllOf(HasSubstr("document 1, token 2"), HasSubstr("id 300")));
    EXPECT_EQ(read_error(301), "no error");
}

TEST_F(DataSourceTest, TheSummarySaysWhatWasFound) {
    auto const source = open(options_for({{counting("a", {1000, 1003})}, {counting("b", {50})}}, 10));
    EXPECT_THAT(source->summary(),
                AllOf(HasSubstr("a: 2 training documents, 2,003 tokens (u16), 200 samples of 10, 2 tokens"
                                " never used"),
                      HasSubstr("\n"), HasSubstr("b: 1 training documents, 50 tokens")));
}

}  // namespace
}  // namespace perigee
