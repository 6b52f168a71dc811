// Packing::best_fit: samples of whole documents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/philox.h"
#include "data/data_source.h"
#include "data/indexed_dataset.h"
#include "megatron_files.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

constexpr int64_t kLength = 64;

class WholeDocumentsTest : public ::testing::Test {
  protected:
    /// Documents of the given lengths whose tokens count up over the whole set from 1, with weight token / 8.
    std::string counting(std::string const& name, std::vector<int64_t> const& lengths) {
        IndexedDatasetWriter writer(*files_, folder_ / name, 60000, /*with_weights=*/true);
        int32_t token = 1;
        for (int64_t const length : lengths) {
            std::vector<int32_t> ids;
            std::vector<float> weights;
            for (int64_t i = 0; i < length; ++i, ++token) {
                ids.push_back(token);
                weights.push_back(static_cast<float>(token) / 8);
            }
            writer.add_document(ids, weights);
        }
        writer.finish();
        return (folder_ / name).string();
    }
    static DataOptions options_for(std::string const& path) {
        DataOptions options;
        options.train = {{.path = path}};
        options.sequence_length = kLength;
        options.packing = Packing::best_fit;
        return options;
    }
    std::unique_ptr<DataSource> open(DataOptions const& options, Split split = Split::train, uint64_t seed = 1) {
        return open_data(options, split, seed, 60000, *files_);
    }

    testing::TemporaryFolder folder_;
    std::unique_ptr<FileSystem> files_ = make_file_system();
};

std::vector<int64_t> ragged(uint64_t seed, int documents) {
    Philox const random(seed, Purpose::mock_data);
    std::vector<int64_t> lengths;
    for (int i = 0; i < documents; ++i) {
        lengths.push_back(1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(i), kLength + 1)));
    }
    return lengths;
}

/// First token of each document in the sample; checks everything else about it.
std::vector<int32_t> documents_of(Batch const& batch, std::map<int32_t, int64_t> const& lengths) {
    EXPECT_EQ(batch.tokens(), kLength);
    std::vector<int32_t> firsts;
    for (size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
        int32_t const begin = batch.cu_seqlens[s], end = batch.cu_seqlens[s + 1];
        int32_t const first = batch.ids_T[static_cast<size_t>(begin)];
        bool const padding = first == 0;
        if (padding) {
            EXPECT_EQ(end, kLength) << "padding comes last";
        } else {
            EXPECT_EQ(end - begin, lengths.at(first) - 1);
            firsts.push_back(first);
        }
        for (int32_t t = begin; t < end; ++t) {
            auto const i = static_cast<size_t>(t);
            EXPECT_EQ(batch.ids_T[i], padding ? 0 : first + t - begin);
            EXPECT_EQ(batch.targets_T[i], padding ? 0 : first + t - begin + 1);
            EXPECT_EQ(batch.weights_T[i], padding ? 0 : static_cast<float>(first + t - begin + 1) / 8);
            EXPECT_EQ(batch.positions_T[i], t - begin);
        }
    }
    return firsts;
}

TEST_F(WholeDocumentsTest, EveryEpochHoldsEveryDocumentOnceInOtherCompany) {
    auto const lengths = ragged(3, 300);
    std::map<int32_t, int64_t> of_first;
    int32_t first = 1;
    for (int64_t const length : lengths) {
        if (length > 1) of_first[first] = length;
        first += static_cast<int32_t>(length);
    }
    ASSERT_LT(of_first.size(), 300u) << "documents of one token have nothing to predict";
    auto const source = open(options_for(counting("set", lengths)));
    int64_t const samples = source->samples_per_epoch();
    std::set<std::set<std::vector<int32_t>>> groupings;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
        std::vector<int32_t> seen;
        std::set<std::vector<int32_t>> grouping;
        for (int64_t i = 0; i < samples; ++i) {
            auto documents = documents_of(make_batch(*source, epoch * samples + i, 1), of_first);
            seen.insert(seen.end(), documents.begin(), documents.end());
            std::ranges::sort(documents);
            grouping.insert(documents);
        }
        std::ranges::sort(seen);
        std::vector<int32_t> expected;
        for (auto const& [token, unused] : of_first) expected.push_back(token);
        EXPECT_EQ(seen, expected);
        groupings.insert(grouping);
    }
    EXPECT_EQ(groupings.size(), 3u);
}

TEST_F(WholeDocumentsTest, ASampleIsAFunctionOfSeedAndNumber) {
    auto const options = options_for(counting("set", ragged(4, 200)));
    auto const one = open(options), other = open(options), third = open(options, Split::train, 2);
    int64_t const samples = one->samples_per_epoch();
    bool differs = false;
    for (int64_t i = 3 * samples; i-- > 0;) {  // the other source is asked in another order
        Batch const a = make_batch(*one, 3 * samples - 1 - i, 1), b = make_batch(*other, 3 * samples - 1 - i, 1);
        EXPECT_EQ(a.ids_T, b.ids_T);
        make_batch(*other, i, 1);
        differs |= make_batch(*third, 3 * samples - 1 - i, 1).ids_T != a.ids_T;
    }
    EXPECT_TRUE(differs);
}

TEST_F(WholeDocumentsTest, HeldOutDocumentsAreTheLastAndNeverTrainedOn) {
    auto options = options_for(counting("set", ragged(5, 200)));
    options.validation_fraction = 0.2;
    auto const train = open(options), validation = open(options, Split::validation);
    int32_t last_trained = 0, first_held_out = 60000;
    for (int64_t i = 0; i < 2 * train->samples_per_epoch(); ++i)
        last_trained = std::max(last_trained, std::ranges::max(make_batch(*train, i, 1).targets_T));
    for (int64_t i = 0; i < validation->samples_per_epoch(); ++i)
        for (int32_t const id : make_batch(*validation, i, 1).ids_T)
            if (id > 0) first_held_out = std::min(first_held_out, id);
    EXPECT_LT(last_trained, first_held_out);
}

TEST_F(WholeDocumentsTest, DocumentsLongerThanASampleAreCountedAndRefused) {
    EXPECT_NO_THROW(open(options_for(counting("longest", {65, 3}))));
    auto const options = options_for(counting("longer", {66, 3, 90}));
    EXPECT_THAT(error_of(Category::data, [&] { open(options); }),
                AllOf(HasSubstr("longer"), HasSubstr("2 of 3 documents"), HasSubstr("at most 65 tokens"),
                      HasSubstr("longest has 90"), HasSubstr("chat.max_tokens")));
    EXPECT_THAT(error_of(Category::data,
                         [&] {
                             open(options_for(counting("short", {1, 0, 1})));
                         }),
                HasSubstr("no document of two tokens"));
}

TEST_F(WholeDocumentsTest, TheSummarySaysHowFullSamplesAre) {
    auto const source = open(options_for(counting("set", {65, 33, 17})));
    EXPECT_EQ(source->samples_per_epoch(), 2);
    EXPECT_THAT(source->summary(), HasSubstr("2 samples of 64, best fit, 87.50% full"));
}

TEST(WholeDocuments, NeedTheDocumentMask) {
    DataOptions options;
    options.mock_data = true;
    options.packing = Packing::best_fit;
    EXPECT_THAT(problems(options), ElementsAre());
    options.document_mask = false;
    EXPECT_THAT(problems(options), ElementsAre(HasSubstr("document_mask must be true")));
}

}  // namespace
}  // namespace perigee
