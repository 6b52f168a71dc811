#include "data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/philox.h"
#include "data/tokenizer/unicode.h"
#include "megatron_files.h"

namespace perigee {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Tokenizer> bytes() { return make_tokenizer(*make_file_system(), "bytes"); }

TEST(ByteTokenizer, EveryByteComesBack) {
    auto const tokenizer = bytes();
    EXPECT_EQ(tokenizer->name(), "bytes");
    EXPECT_EQ(tokenizer->vocab_size(), 257);
    std::string text;
    for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(byte));
    auto const ids = tokenizer->encode(text);
    for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(ids[static_cast<size_t>(byte)], byte);
    EXPECT_EQ(tokenizer->decode(ids), text);
    EXPECT_EQ(tokenizer->find("\xFF"), 255);
}

TEST(ByteTokenizer, HasNoSpecialNamesInText) {
    auto const tokenizer = bytes();
    EXPECT_EQ(tokenizer->encode_with_special("<|im_end|>"), tokenizer->encode("<|im_end|>"));
}

TEST(ByteTokenizer, TheEndOfADocumentIsNoText) {
    auto const tokenizer = bytes();
    int32_t const end = tokenizer->end_of_document();
    EXPECT_EQ(tokenizer->decode({'a', end, 'b'}), "ab");
    EXPECT_TRUE(tokenizer->is_special(end));
    EXPECT_EQ(tokenizer->find(tokenizer->piece(end)), end);
}

TEST(ByteTokenizer, IdsOutsideTheVocabularyAreRefused) {
    auto const tokenizer = bytes();
    for (int32_t const id : {-1, 257}) {
        EXPECT_THAT(testing::error_of(Category::data, [&] { tokenizer->decode({id}); }),
                    HasSubstr(fmt::format("token id {}", id)));
    }
}

TEST(Tokenizer, NamesThatAreNoPathAreConfigErrors) {
    EXPECT_THAT(testing::error_of(Category::config, [] { make_tokenizer(*make_file_system(), "words"); }),
                HasSubstr("words"));
}

TEST(StreamDecoder, CharactersComeWhole) {
    auto const tokenizer = bytes();
    StreamDecoder stream(*tokenizer);
    std::vector<std::string> pieces;
    for (unsigned char const byte : std::string("a\xC3\xA9\xF0\x9F\x99\x82")) pieces.push_back(stream.push(byte));
    EXPECT_THAT(pieces, ::testing::ElementsAre("a", "", "\xC3\xA9", "", "", "", "\xF0\x9F\x99\x82"));
    EXPECT_EQ(stream.finish(), "");
}

TEST(StreamDecoder, AnyBytesMakeTheSameTextAsAllAtOnce) {
    auto const tokenizer = bytes();
    Philox const random(20, Purpose::mock_data);
    for (uint64_t trial = 0, draw = 0; trial < 300; ++trial) {
        StreamDecoder stream(*tokenizer);
        std::string text, streamed;
        for (int i = 0; i < 40; ++i) {
            // Few kinds of bytes, so that whole and nearly whole characters are common.
            constexpr unsigned char kBytes[] = {0x41, 0x80, 0x9F, 0xA0, 0xBF, 0xC3, 0xE0, 0xE2, 0xED, 0xF0, 0xF4, 0xFF};
            auto const byte = kBytes[static_cast<size_t>(random.uniform(draw++) * sizeof kBytes)];
            text.push_back(static_cast<char>(byte));
            std::string const piece = stream.push(byte);
            ASSERT_TRUE(utf8::is_whole(piece));
            streamed += piece;
        }
        ASSERT_EQ(streamed + stream.finish(), utf8::repaired(text)) << ::testing::PrintToString(text);
    }
}

TEST(Utf8, BrokenSequencesAreCutAsTheStandardAdvises) {
    // Unicode 15, section 3.9, tables 3-8 to 3-11.
    std::pair<char const*, std::string> const cases[] = {
        {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "????????A"},
        {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", "????????A"},
        {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", "?????A??B"},
        {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "????A"},
        {"\xE1\x80", "?"},
    };
    for (auto const& [broken, shown] : cases) {
        std::string expected;
        for (char const c : shown) expected += c == '?' ? std::string(utf8::kReplacement) : std::string{c};
        EXPECT_EQ(utf8::repaired(broken), expected);
        EXPECT_FALSE(utf8::is_whole(broken));
    }
}

TEST(Utf8, EveryCodePointComesBack) {
    for (char32_t point = 0; point <= 0x10FFFF; ++point) {
        std::string text;
        utf8::append(point, text);
        bool const surrogate = 0xD800 <= point && point <= 0xDFFF;
        ASSERT_EQ(utf8::is_whole(text), !surrogate) << static_cast<uint32_t>(point);
        if (!surrogate) {
            ASSERT_EQ(utf8::code_point(text), point);
        }
    }
}

}  // namespace
}  // namespace perigee
