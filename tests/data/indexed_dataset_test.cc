#include "data/indexed_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "base/philox.h"
#include "megatron_files.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::little_endian;
using testing::MegatronFiles;
using testing::read_bytes;
using testing::write_bytes;

std::string patched(std::string text, size_t at, std::string const& bytes) {
    std::copy(bytes.begin(), bytes.end(), text.begin() + static_cast<std::ptrdiff_t>(at));
    return text;
}

class IndexedDatasetTest : public ::testing::Test {
  protected:
    std::string open_error() {
        return error_of(Category::data, [&] { IndexedDataset(*files_, prefix_); });
    }
    std::filesystem::path file(char const* extension) const { return prefix_.string() + extension; }
    void patch(char const* extension, size_t at, std::string const& bytes) {
        std::string text = read_bytes(file(extension));
        ASSERT_LE(at + bytes.size(), text.size());
        write_bytes(file(extension), patched(text, at, bytes));
    }
    void resize(char const* extension, int64_t change) {
        std::filesystem::resize_file(file(extension),
                                     std::filesystem::file_size(file(extension)) + static_cast<uintmax_t>(change));
    }

    testing::TemporaryFolder folder_;
    std::unique_ptr<FileSystem> files_ = make_file_system();
    Path prefix_ = folder_ / "set";
    MegatronFiles const three_{.sequences = {{1, 2, 3}, {4, 5}, {6, 7, 8, 9}}, .borders = {}};
    // Layout of three_'s index: lengths at 34, offsets at 46, borders at 70, end at 102.
};

std::vector<int64_t> tokens_of(IndexedDataset const& data, int64_t document) {
    std::vector<int64_t> tokens(static_cast<size_t>(data.document_begin(document + 1) - data.document_begin(document)));
    data.read(data.document_begin(document), tokens);
    return tokens;
}

struct DTypeCase {
    int code;
    int bytes;
    int64_t low, high;
};

class EveryTokenType : public IndexedDatasetTest, public ::testing::WithParamInterface<DTypeCase> {};

TEST_P(EveryTokenType, ReadsBackWhatTheFormatSays) {
    auto const [code, bytes, low, high] = GetParam();
    MegatronFiles const written{
        .dtype_code = code, .token_bytes = bytes, .sequences = {{low, 0, high}, {7}, {high, low}}, .borders = {}};
    written.write(prefix_);
    IndexedDataset const data(*files_, prefix_);
    ASSERT_EQ(data.documents(), 3);
    EXPECT_EQ(data.tokens(), 6);
    for (int64_t document = 0; document < 3; ++document) {
        EXPECT_EQ(tokens_of(data, document), written.sequences[static_cast<size_t>(document)]);
    }
}

INSTANTIATE_TEST_SUITE_P(All, EveryTokenType,
                         ::testing::Values(DTypeCase{1, 1, 0, 255}, DTypeCase{2, 1, -128, 127},
                                           DTypeCase{3, 2, -32768, 32767}, DTypeCase{4, 4, INT32_MIN, INT32_MAX},
                                           DTypeCase{5, 8, INT64_MIN, INT64_MAX}, DTypeCase{8, 2, 0, 65535}));

TEST_F(IndexedDatasetTest, DocumentsMayHoldSeveralSequencesOrNone) {
    MegatronFiles const written{
        .sequences = {{1, 2}, {3}, {}, {4, 5, 6}}, .borders = {0, 0, 2, 2, 3, 4, 4}, .modes = true};
    written.write(prefix_);
    IndexedDataset const data(*files_, prefix_);
    ASSERT_EQ(data.documents(), 6);
    std::vector<int64_t> begins;
    for (int64_t document = 0; document <= 6; ++document) begins.push_back(data.document_begin(document));
    EXPECT_EQ(begins, (std::vector<int64_t>{0, 0, 3, 3, 3, 6, 6}));
    std::vector<int64_t> holders;
    for (int64_t position = 0; position < 6; ++position) holders.push_back(data.document_at(position));
    EXPECT_EQ(holders, (std::vector<int64_t>{1, 1, 1, 4, 4, 4}));
}

TEST_F(IndexedDatasetTest, FindsTheDocumentOfEveryTokenAmongMany) {
    Philox const random(11, Purpose::mock_data);
    MegatronFiles written;
    std::vector<int64_t> holder;
    for (uint64_t document = 0; document < 300; ++document) {
        uint64_t const length = random.below(document, 5);
        written.sequences.emplace_back(length, 1);
        holder.insert(holder.end(), length, static_cast<int64_t>(document));
    }
    written.write(prefix_);
    IndexedDataset const data(*files_, prefix_);
    ASSERT_EQ(data.tokens(), static_cast<int64_t>(holder.size()));
    for (size_t i = 0; i < holder.size(); ++i) EXPECT_EQ(data.document_at(static_cast<int64_t>(i)), holder[i]);
}

TEST_F(IndexedDatasetTest, MissingOrEmptyFilesAreNamed) {
    EXPECT_THAT(open_error(), HasSubstr(file(".idx; perigee tokenize TEXTS --output ").string()));
    write_bytes(file(".idx"), three_.idx());
    EXPECT_THAT(open_error(), HasSubstr(file(".bin").string()));
    write_bytes(file(".bin"), "");
    EXPECT_THAT(open_error(), AllOf(HasSubstr(file(".bin").string()), HasSubstr("truncated")));
    write_bytes(file(".idx"), "");
    EXPECT_THAT(open_error(), HasSubstr("does not start with MMIDIDX"));
}

TEST_F(IndexedDatasetTest, TruncationAtAnyByteIsFound) {
    std::string const idx = three_.idx(), bin = three_.bin();
    ASSERT_EQ(idx.size(), 102u);
    three_.write(prefix_);
    ASSERT_EQ(open_error(), "no error");
    for (size_t size = 0; size < idx.size(); ++size) {
        write_bytes(file(".idx"), idx.substr(0, size));
        EXPECT_THAT(open_error(), HasSubstr(file(".idx").string())) << size;
    }
    write_bytes(file(".idx"), idx);
    for (size_t size = 0; size < bin.size(); ++size) {
        write_bytes(file(".bin"), bin.substr(0, size));
        EXPECT_THAT(open_error(), HasSubstr(file(".bin").string())) << size;
    }
}

TEST_F(IndexedDatasetTest, FilesLargerThanTheIndexSaysAreRefused) {
    three_.write(prefix_);
    resize(".bin", 2);
    EXPECT_THAT(open_error(), AllOf(HasSubstr("20 bytes"), HasSubstr("accounts for 18")));
    three_.write(prefix_);
    resize(".idx", 1);
    EXPECT_THAT(open_error(), AllOf(HasSubstr("102 bytes (105 with modes)"), HasSubstr("has 103 bytes")));
}

TEST_F(IndexedDatasetTest, ForeignHeadersAreRefused) {
    three_.write(prefix_);
    patch(".idx", 0, "PK");
    EXPECT_THAT(open_error(), HasSubstr("not a Megatron index"));
    three_.write(prefix_);
    patch(".idx", 9, little_endian(2, 8));
    EXPECT_THAT(open_error(), HasSubstr("version 2, expected 1"));
    for (int const code : {0, 6, 7, 9, 255}) {
        three_.write(prefix_);
        patch(".idx", 17, little_endian(static_cast<uint64_t>(code), 1));
        EXPECT_THAT(open_error(), HasSubstr(fmt::format("dtype code {}", code)));
    }
}

TEST_F(IndexedDatasetTest, CountsThatOverflowAreRefused) {
    // With 2^62 more sequences or 2^61 more borders the sizes wrap around to the true ones.
    uint64_t const huge[] = {
        4, (uint64_t{1} << 62) + 3, (uint64_t{1} << 61) + 4, uint64_t{1} << 63, ~uint64_t{0}, (~uint64_t{0} - 33) / 12};
    for (uint64_t const count : huge) {
        for (size_t const at : {18u, 26u}) {
            if (at == 26 && count == 4) continue;  // the true number of borders
            three_.write(prefix_);
            patch(".idx", at, little_endian(count, 8));
            EXPECT_THAT(open_error(), HasSubstr(fmt::format("{}", count)));
        }
    }
}

TEST_F(IndexedDatasetTest, NoDocumentsIsAnError) {
    MegatronFiles{.sequences = {}, .borders = {0}}.write(prefix_);
    EXPECT_THAT(open_error(), HasSubstr("no documents"));
    MegatronFiles{.sequences = {{}, {}}, .borders = {}}.write(prefix_);
    EXPECT_THAT(open_error(), HasSubstr("no tokens"));
}

TEST_F(IndexedDatasetTest, LengthsOffsetsAndBordersMustTileTheTokens) {
    auto const error_after = [&](size_t at, std::string const& bytes) {
        three_.write(prefix_);
        patch(".idx", at, bytes);
        return open_error();
    };
    EXPECT_THAT(error_after(38, little_endian(0xffffffff, 4)), HasSubstr("sequence 1 has length -1"));
    EXPECT_THAT(error_after(34, little_endian(0x7fffffff, 4)), HasSubstr("sequence 0"));
    EXPECT_THAT(error_after(42, little_endian(5, 4)), HasSubstr("sequence 2 of 3 ends at byte 20"));
    EXPECT_THAT(error_after(42, little_endian(3, 4)), HasSubstr("accounts for 16"));
    EXPECT_THAT(error_after(54, little_endian(1000, 8)), HasSubstr("sequence 1 starts at byte 1000 of the .bin"));
    EXPECT_THAT(error_after(54, little_endian(~uint64_t{0}, 8)), HasSubstr("starts at byte -1"));
    EXPECT_THAT(error_after(54, little_endian(4, 8)), HasSubstr("expected 6"));
    EXPECT_THAT(error_after(70, little_endian(1, 8)), HasSubstr("run from 1 to 3, expected from 0 to 3"));
    EXPECT_THAT(error_after(94, little_endian(9, 8)), HasSubstr("run from 0 to 9"));
    EXPECT_THAT(error_after(86, little_endian(0, 8)), HasSubstr("border 2 is 0, less than 1"));
    EXPECT_THAT(error_after(78, little_endian(~uint64_t{0}, 8)), HasSubstr("border 1 is -1"));
    EXPECT_THAT(error_after(86, little_endian(7, 8)), HasSubstr("border 3 is 3, less than 7"));
}

TEST_F(IndexedDatasetTest, MaskBitsAreReadLowestFirst) {
    three_.write(prefix_);
    std::vector<int> const bits{1, 0, 0, 1, 1, 0, 1, 0, 1};
    write_bytes(file(".mask"), MegatronFiles::mask(bits));
    IndexedDataset const data(*files_, prefix_);
    ASSERT_TRUE(data.has_weights());
    for (size_t i = 0; i < bits.size(); ++i)
        EXPECT_EQ(data.loss_weight(static_cast<int64_t>(i)), static_cast<float>(bits[i])) << i;
}

TEST_F(IndexedDatasetTest, WithoutMaskEveryTokenCounts) {
    three_.write(prefix_);
    IndexedDataset const data(*files_, prefix_);
    EXPECT_FALSE(data.has_weights());
    for (int64_t i = 0; i < data.tokens(); ++i) EXPECT_EQ(data.loss_weight(i), 1.0f);
}

TEST_F(IndexedDatasetTest, DamagedMasksAreRefused) {
    three_.write(prefix_);
    std::string const good = MegatronFiles::mask({1, 0, 0, 1, 1, 0, 1, 0, 1});
    auto const error_with = [&](std::string const& mask) {
        write_bytes(file(".mask"), mask);
        return open_error();
    };
    ASSERT_EQ(error_with(good), "no error");
    for (size_t size = 0; size < good.size(); ++size) {
        EXPECT_THAT(error_with(good.substr(0, size)), HasSubstr(file(".mask").string())) << size;
    }
    EXPECT_THAT(error_with(good + '\0'), HasSubstr("27 bytes, expected 26"));
    EXPECT_THAT(error_with(patched(good, 8, "\2")), HasSubstr("version 2"));
    EXPECT_THAT(error_with(patched(good, 0, "X")), HasSubstr("does not start with PGEMASK"));
    EXPECT_THAT(error_with(MegatronFiles::mask({1, 0, 0, 1, 1, 0, 1, 0})),
                HasSubstr("8 tokens, but the data set has 9"));
    EXPECT_THAT(error_with(patched(good, 25, "\3")), HasSubstr("after the last token"));
}

std::string weights_file(std::vector<float> const& weights) {
    std::string text("PGEWGHT\0", 8);
    text += little_endian(1, 8) + little_endian(weights.size(), 8);
    for (float const weight : weights) text += little_endian(std::bit_cast<uint32_t>(weight), 4);
    return text;
}

TEST_F(IndexedDatasetTest, WeightsAreReadAsTheyAre) {
    three_.write(prefix_);
    std::vector<float> const weights{0, 0.25f, 1, 3e30f, 1e-30f, 0, 2, 1, 0.1f};
    write_bytes(file(".weights"), weights_file(weights));
    IndexedDataset const data(*files_, prefix_);
    ASSERT_TRUE(data.has_weights());
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_EQ(data.loss_weight(static_cast<int64_t>(i)), weights[i]) << i;
}

TEST_F(IndexedDatasetTest, DamagedWeightsAreRefused) {
    three_.write(prefix_);
    std::string const good = weights_file({1, 1, 1, 1, 1, 1, 1, 1, 1});
    for (size_t size = 0; size < good.size(); ++size) {
        write_bytes(file(".weights"), good.substr(0, size));
        EXPECT_THAT(open_error(), HasSubstr(file(".weights").string())) << size;
    }
    write_bytes(file(".weights"), good + '\0');
    EXPECT_THAT(open_error(), HasSubstr("61 bytes, expected 60"));
    for (float const bad : {-1.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        write_bytes(file(".weights"), weights_file({1, 1, 1, bad, 1, 1, 1, 1, 1}));
        EXPECT_THAT(error_of(Category::data, [&] { IndexedDataset(*files_, prefix_).loss_weight(3); }),
                    AllOf(HasSubstr(file(".weights").string()), HasSubstr("token 3")));
    }
    write_bytes(file(".mask"), MegatronFiles::mask({1, 0, 0, 1, 1, 0, 1, 0, 1}));
    EXPECT_THAT(open_error(), HasSubstr("keep one"));
}

TEST_F(IndexedDatasetTest, ConversationsWithoutLossWeightsAreRefused) {
    three_.write(prefix_);
    write_bytes(file(".chat.json"), R"({"template": ""})");
    EXPECT_THAT(open_error(), AllOf(HasSubstr(file(".mask").string()), HasSubstr("prompts would carry loss")));
    write_bytes(file(".mask"), MegatronFiles::mask({1, 0, 0, 1, 1, 0, 1, 0, 1}));
    EXPECT_EQ(IndexedDataset(*files_, prefix_).loss_weight(1), 0.0f);
}

class WriterTest : public IndexedDatasetTest {};

TEST_F(WriterTest, GoesOnAfterASaveAsIfNeverBroken) {
    std::vector<std::vector<int32_t>> documents;
    for (int32_t i = 0; i < 40; ++i) documents.emplace_back(static_cast<size_t>(i * 7 % 13), i);
    for (bool const bits : {true, false}) {
        auto const add = [&](IndexedDatasetWriter& writer, size_t i) {
            std::vector<float> weights(documents[i].size(), i % 3 == 0 ? 1.0f : 0.0f);
            if (!bits && i == 5) weights[0] = 0.5f;
            writer.add_document(documents[i], weights);
        };
        auto const contents = [&] {
            return read_bytes(file(".bin")) + read_bytes(file(".idx")) + read_bytes(file(bits ? ".mask" : ".weights"));
        };
        {
            IndexedDatasetWriter writer(*files_, prefix_, 257, true);
            for (size_t i = 0; i < documents.size(); ++i) add(writer, i);
            writer.finish();
        }
        std::string const whole = contents();
        for (size_t const cut : {size_t{0}, size_t{1}, size_t{2}, size_t{17}, size_t{39}, size_t{40}}) {
            WriterState state;
            {
                IndexedDatasetWriter first(*files_, prefix_, 257, true);
                for (size_t i = 0; i < cut; ++i) add(first, i);
                state = first.save();
                if (cut < documents.size()) add(first, cut);  // was not saved, and must not count
            }
            IndexedDatasetWriter second(*files_, prefix_, 257, true, &state);
            EXPECT_EQ(second.documents(), static_cast<int64_t>(cut));
            for (size_t i = cut; i < documents.size(); ++i) add(second, i);
            second.finish();
            EXPECT_TRUE(contents() == whole) << cut;
        }
    }
}

TEST_F(WriterTest, AStateWithoutItsFilesIsRefused) {
    WriterState const state{.documents = 1, .tokens = 5};
    EXPECT_THAT(error_of(Category::data, [&] { IndexedDatasetWriter(*files_, prefix_, 257, false, &state); }),
                HasSubstr("does not hold the 10 bytes that an earlier run wrote"));
}

TEST_F(WriterTest, WritesExactlyTheFormat) {
    IndexedDatasetWriter writer(*files_, prefix_, 257, true);
    std::vector<std::vector<int32_t>> const documents{{1, 2, 256}, {4, 5}, {6, 7, 8, 9}};
    std::vector<std::vector<float>> const loss{{1, 0, 0}, {1, 1}, {0, 1, 0, 1}};
    for (size_t i = 0; i < documents.size(); ++i) writer.add_document(documents[i], loss[i]);
    EXPECT_FALSE(files_->exists(file(".idx")));
    EXPECT_FALSE(files_->exists(file(".bin")));
    bool written = false, beside = false;
    writer.finish(
        [&] {
            written = true;
            EXPECT_EQ(read_bytes(file(".bin.tmp")).size(), 18u);
            EXPECT_FALSE(files_->exists(file(".bin")));
        },
        [&] {
            beside = true;
            EXPECT_TRUE(files_->exists(file(".bin")));
            EXPECT_FALSE(files_->exists(file(".idx"))) << "the data set opens once all that belongs to it is there";
        });
    EXPECT_TRUE(written && beside);
    MegatronFiles const expected{.sequences = {{1, 2, 256}, {4, 5}, {6, 7, 8, 9}}, .borders = {}};
    EXPECT_EQ(read_bytes(file(".idx")), expected.idx());
    EXPECT_EQ(read_bytes(file(".bin")), expected.bin());
    EXPECT_EQ(read_bytes(file(".mask")), MegatronFiles::mask({1, 0, 0, 1, 1, 0, 1, 0, 1}));
}

TEST_F(WriterTest, WeightsBesidesZeroAndOneTakeAFileOfTheirOwn) {
    three_.write(prefix_);
    write_bytes(file(".mask"), MegatronFiles::mask({1, 0, 0, 1, 1, 0, 1, 0, 1}));
    IndexedDatasetWriter writer(*files_, prefix_, 257, true);
    writer.add_document(std::vector<int32_t>{1, 2, 256}, std::vector<float>{0, 1, 0.5f});
    writer.add_document(std::vector<int32_t>{4, 5}, std::vector<float>{0, 7});
    writer.finish();
    EXPECT_EQ(files_->list(prefix_.parent_path()), (std::vector<std::string>{"set.bin", "set.idx", "set.weights"}));
    EXPECT_EQ(read_bytes(file(".weights")), weights_file({0, 1, 0.5f, 0, 7}));
}

TEST_F(WriterTest, TokensTakeFourBytesFromVocabulary65500) {
    for (int64_t const vocab : {int64_t{65499}, int64_t{65500}}) {
        IndexedDatasetWriter writer(*files_, prefix_, vocab);
        writer.add_document(std::vector<int32_t>{static_cast<int32_t>(vocab - 1), 3});
        writer.finish();
        MegatronFiles const expected{.dtype_code = vocab < 65500 ? 8 : 4,
                                     .token_bytes = vocab < 65500 ? 2 : 4,
                                     .sequences = {{vocab - 1, 3}},
                                     .borders = {}};
        EXPECT_EQ(read_bytes(file(".idx")), expected.idx());
        EXPECT_EQ(read_bytes(file(".bin")), expected.bin());
    }
}

TEST_F(WriterTest, LargeDataSetsRoundTrip) {
    Philox const random(23, Purpose::mock_data);
    std::vector<std::vector<int64_t>> documents;
    IndexedDatasetWriter writer(*files_, prefix_, 100000, true);
    std::vector<int> bits;
    uint64_t counter = 0;
    for (int document = 0; document < 700; ++document) {
        std::vector<int32_t> tokens(random.below(counter++, 1500));
        std::vector<float> loss;
        for (auto& token : tokens) {
            token = static_cast<int32_t>(random.below(counter++, 100000));
            loss.push_back(static_cast<float>(token & 1));
            bits.push_back(token & 1);
        }
        documents.emplace_back(tokens.begin(), tokens.end());
        writer.add_document(tokens, loss);
    }
    writer.finish();
    IndexedDataset const data(*files_, prefix_);
    ASSERT_EQ(data.documents(), 700);
    for (int64_t i = 0; i < 700; ++i) ASSERT_EQ(tokens_of(data, i), documents[static_cast<size_t>(i)]);
    for (size_t i = 0; i < bits.size(); ++i)
        ASSERT_EQ(data.loss_weight(static_cast<int64_t>(i)), static_cast<float>(bits[i])) << i;
}

TEST_F(WriterTest, RefusesIdsOutsideTheVocabulary) {
    IndexedDatasetWriter writer(*files_, prefix_, 257);
    for (int32_t const id : {-1, 257}) {
        EXPECT_THAT(error_of(Category::data, [&] { writer.add_document(std::vector<int32_t>{id}); }),
                    HasSubstr(fmt::format("token id {}", id)));
    }
}

TEST_F(WriterTest, AnUnfinishedWriterLeavesNothingAndKeepsWhatWasThere) {
    three_.write(prefix_);
    {
        IndexedDatasetWriter writer(*files_, prefix_, 257, true);
        writer.add_document(std::vector<int32_t>{1}, std::vector<float>{1});
    }
    EXPECT_EQ(files_->list(prefix_.parent_path()), (std::vector<std::string>{"set.bin", "set.idx"}));
    EXPECT_EQ(read_bytes(file(".bin")), three_.bin());
}

TEST_F(WriterTest, AnOldMaskDoesNotOutliveItsDataSet) {
    three_.write(prefix_);
    write_bytes(file(".mask"), MegatronFiles::mask({1, 0, 0, 1, 1, 0, 1, 0, 1}));
    IndexedDatasetWriter writer(*files_, prefix_, 257);
    writer.add_document(std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9});
    writer.finish();
    EXPECT_FALSE(IndexedDataset(*files_, prefix_).has_weights());
}

TEST_F(WriterTest, NothingToWriteIsAnError) {
    IndexedDatasetWriter writer(*files_, prefix_, 257);
    EXPECT_THAT(error_of(Category::data, [&] { writer.finish(); }), HasSubstr("no tokens"));
}

}  // namespace
}  // namespace perigee
