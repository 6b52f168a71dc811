#include "data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron_files.h"

namespace perigee {
namespace {

using ::testing::HasSubstr;

TEST(ByteTokenizer, EveryByteComesBack) {
    auto const tokenizer = make_tokenizer("bytes");
    EXPECT_EQ(tokenizer->name(), "bytes");
    EXPECT_EQ(tokenizer->vocab_size(), 257);
    std::string text;
    for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(byte));
    auto const ids = tokenizer->encode(text);
    for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(ids[static_cast<size_t>(byte)], byte);
    EXPECT_EQ(tokenizer->decode(ids), text);
}

TEST(ByteTokenizer, HasNoSpecialTokens) {
    auto const tokenizer = make_tokenizer("bytes");
    EXPECT_EQ(tokenizer->encode_with_special("<|im_end|>"), tokenizer->encode("<|im_end|>"));
}

TEST(ByteTokenizer, TheEndOfADocumentIsNoText) {
    auto const tokenizer = make_tokenizer("bytes");
    EXPECT_EQ(tokenizer->decode({'a', tokenizer->end_of_document(), 'b'}), "ab");
}

TEST(ByteTokenizer, IdsOutsideTheVocabularyAreRefused) {
    auto const tokenizer = make_tokenizer("bytes");
    for (int32_t const id : {-1, 257}) {
        EXPECT_THAT(testing::error_of(Category::data, [&] { tokenizer->decode({id}); }),
                    HasSubstr(fmt::format("token id {}", id)));
    }
}

TEST(Tokenizer, UnknownNamesAreConfigErrors) {
    EXPECT_THAT(testing::error_of(Category::config, [] { make_tokenizer("words"); }), HasSubstr("words"));
}

}  // namespace
}  // namespace perigee
