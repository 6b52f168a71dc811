#include "data/tokenizer/tokenizer_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "data/chat_encoder.h"
#include "megatron_files.h"
#include "support/memory_file_system.h"
#include "support/tiny_tokenizer.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The fields of a protocol buffer that a sentencepiece model is made of.
std::string number(int field, uint64_t value) {
    std::string bytes{static_cast<char>((field << 3 & 0x7F) | (field > 15 ? 0x80 : 0))};
    if (field > 15) bytes += static_cast<char>(field >> 4);
    for (; value > 127; value >>= 7) bytes += static_cast<char>(value | 0x80);
    return bytes + static_cast<char>(value);
}
std::string block(int field, std::string const& contents) {
    std::string tag{static_cast<char>(field << 3 | 2)};
    std::string size = number(0, contents.size()).substr(1);
    return tag + size + contents;
}
std::string sentence_piece(std::string const& text, float score, int type) {
    auto const bits = std::bit_cast<std::array<char, 4>>(score);
    return block(
        1, block(1, text) + "\x15" + std::string(bits.begin(), bits.end()) + number(3, static_cast<uint64_t>(type)));
}

/// <unk>, <s>, </s>, all bytes, and the merges of " hello" (BPE, a space put before the text, as in Llama 2).
std::string tiny_model() {
    enum { normal = 1, unknown = 2, control = 3, byte = 6 };
    std::string model =
        sentence_piece("<unk>", 0, unknown) + sentence_piece("<s>", 0, control) + sentence_piece("</s>", 0, control);
    for (int i = 0; i < 256; ++i) model += sentence_piece(fmt::format("<0x{:02X}>", i), 0, byte);
    float score = 0;
    for (char const* const text : {"he", "ll", "hell", "hello", "\u2581hello", "\u2581", "h", "e", "l", "o"}) {
        model += sentence_piece(text, --score, normal);
    }
    model += block(2, number(3, 2) + number(35, 1));  // trainer: model type BPE, byte fallback
    return model +
           block(3, number(3, 1) + number(4, 0) + number(5, 1));  // normalizer: prefix, extra spaces stay, escaped
}

class TokenizerFiles : public ::testing::Test {
  protected:
    void write(Path const& path, std::string const& text) {
        files_.make_directories(path.parent_path());
        files_.replace_text(path, text);
    }
    std::string refusal(Path const& path) {
        return testing::error_of(Category::config, [&] { open_tokenizer(files_, path)->end_of_document(); });
    }
    testing::MemoryFileSystem files_;
};

TEST_F(TokenizerFiles, TheEndOfADocumentStandsInTheFilesBeside) {
    std::string const tokens = R"([{"id": 260, "content": "<a>", "special": true}, {"id": 261, "content": "<b>"}])";
    write("/m/tokenizer.json", testing::TinyTokenizer{.added_tokens = tokens}.json());
    EXPECT_THAT(refusal("/m"), AllOf(HasSubstr("/m/tokenizer.json"), HasSubstr("eos_token")));
    write("/m/config.json", R"({"eos_token_id": [261, 260]})");
    EXPECT_EQ(open_tokenizer(files_, "/m")->end_of_document(), 261);
    write("/m/tokenizer_config.json", R"({"eos_token": null, "other": {"x": 1}})");
    EXPECT_EQ(open_tokenizer(files_, "/m")->end_of_document(), 261);
    write("/m/tokenizer_config.json", R"({"eos_token": "<a>"})");
    EXPECT_EQ(open_tokenizer(files_, "/m")->end_of_document(), 260);
    write("/m/tokenizer_config.json", R"({"eos_token": {"content": "<b>", "lstrip": false}})");
    auto const tokenizer = make_tokenizer(files_, "/m/tokenizer.json");
    EXPECT_EQ(tokenizer->end_of_document(), 261);
    EXPECT_EQ(tokenizer->name(), "/m/tokenizer.json");
    EXPECT_THAT(tokenizer->prefix(), ElementsAre());
}

TEST_F(TokenizerFiles, WrongEndsOfDocumentsAreNamed) {
    write("/m/tokenizer.json", testing::TinyTokenizer{}.json());
    write("/m/config.json", R"({"eos_token_id": 260})");
    EXPECT_THAT(refusal("/m"), AllOf(HasSubstr("/m/config.json: eos_token_id: 260")));
    write("/m/tokenizer_config.json", R"({"eos_token": "<none>"})");
    EXPECT_THAT(refusal("/m"), HasSubstr("/m/tokenizer_config.json: eos_token: \"<none>\""));
    write("/m/tokenizer_config.json", R"({"eos_token": 5})");
    EXPECT_THAT(refusal("/m"), HasSubstr("eos_token: 5"));
    write("/m/tokenizer_config.json", "[]");
    EXPECT_THAT(refusal("/m"), HasSubstr("/m/tokenizer_config.json: not a JSON object"));
}

TEST_F(TokenizerFiles, MissingFilesAreNamed) {
    EXPECT_THAT(refusal("/nowhere"), AllOf(HasSubstr("/nowhere"), HasSubstr("\"bytes\"")));
    files_.make_directories("/empty");
    EXPECT_THAT(refusal("/empty"), HasSubstr("neither tokenizer.model nor tokenizer.json"));
}

TEST_F(TokenizerFiles, SentencePieceModels) {
    write("/m/tokenizer.model", tiny_model());
    write("/m/tokenizer.json", "not looked at");
    auto const tokenizer = open_tokenizer(files_, "/m");
    EXPECT_EQ(tokenizer->vocab_size(), 269);
    EXPECT_EQ(tokenizer->end_of_document(), 2);
    EXPECT_THAT(tokenizer->prefix(), ElementsAre(1));
    EXPECT_THAT(tokenizer->encode("hello hello\n"), ElementsAre(263, 263, 3 + '\n'));
    EXPECT_EQ(tokenizer->decode({1, 263, 263, 3 + '\n', 2}), "hello hello\n");
    EXPECT_EQ(tokenizer->piece(263), " hello");
    EXPECT_EQ(tokenizer->piece(3 + 0xFF), "\xFF");
    EXPECT_EQ(tokenizer->find(" hello"), 263);
    EXPECT_EQ(tokenizer->find("</s>"), 2);
    EXPECT_EQ(tokenizer->find("goodbye"), std::nullopt);
    EXPECT_TRUE(tokenizer->is_special(2));
    EXPECT_FALSE(tokenizer->is_special(0));
    EXPECT_FALSE(tokenizer->is_special(269));
    EXPECT_THROW(tokenizer->decode({269}), Error);
}

TEST_F(TokenizerFiles, SentencePieceControlTokensAreOnlyReadInTemplates) {
    write("/m/tokenizer.model", tiny_model());
    auto const tokenizer = open_tokenizer(files_, "/m/tokenizer.model");
    EXPECT_THAT(tokenizer->encode_with_special("<s>hello</s>"), ElementsAre(1, 262, 2));
    EXPECT_THAT(tokenizer->encode("</s>"), ::testing::Not(::testing::Contains(2)));
    EXPECT_EQ(tokenizer->encode_guarded("<" + std::string(kGuard) + "/s>"), tokenizer->encode("</s>"));
    EXPECT_THAT(tokenizer->encode_guarded("<s>he" + std::string(kGuard) + "llo</s>"), ElementsAre(1, 262, 2));
}

TEST_F(TokenizerFiles, SentencePieceModelsTakeEachBrokenSequenceForOneReplacement) {
    write("/m/tokenizer.model", tiny_model());
    auto const tokenizer = open_tokenizer(files_, "/m/tokenizer.model");
    for (auto const& [broken, whole] : std::vector<std::pair<std::string, std::string>>{
             {"he\xE2\x82llo", "he\uFFFDllo"}, {"\xF0\x9F\x98", "\uFFFD"}, {"\xFF\xFFhello", "\uFFFD\uFFFDhello"}}) {
        EXPECT_EQ(tokenizer->encode(broken), tokenizer->encode(whole));
        EXPECT_EQ(tokenizer->encode_with_special(broken), tokenizer->encode_with_special(whole));
    }
}

TEST_F(TokenizerFiles, SentencePieceModelsPutASpaceBeforeADocumentOnly) {
    write("/m/tokenizer.model", tiny_model());
    auto const tokenizer = open_tokenizer(files_, "/m/tokenizer.model");
    EXPECT_THAT(tokenizer->encode("hello"), ElementsAre(263));
    EXPECT_THAT(tokenizer->encode("hello", TextAfter::special), ElementsAre(262));
    EXPECT_THAT(tokenizer->encode_with_special("hello<s>hello hello</s>"), ElementsAre(263, 1, 262, 263, 2));
    EXPECT_THAT(tokenizer->encode_with_special("hello", TextAfter::text), ElementsAre(262));

    ChatOptions const options{
        .format = ChatFormat::custom, .roles = {{"user", "<s>", "</s>"}, {"assistant", "he", "</s>"}}, .stop = "</s>"};
    ChatEncoder const chat(options, 100, *tokenizer);
    EXPECT_THAT(chat.encode({{"user", "hello"}, {"assistant", "hello"}}).tokens, ElementsAre(1, 262, 2, 259, 262, 2));
    EXPECT_THAT(ChatEncoder({}, 100, *tokenizer).encode({{"user", "hello"}, {"assistant", "hello"}}).tokens,
                ElementsAre(1, 263, 262, 2));
}

TEST_F(TokenizerFiles, SentencePieceModelsHeedTheirConfig) {
    write("/m/tokenizer.model", tiny_model());
    write("/m/tokenizer_config.json", R"({"add_bos_token": false, "eos_token": "<s>",
                                          "added_tokens_decoder": {"2": {"content": "</s>"}}})");
    auto const tokenizer = open_tokenizer(files_, "/m");
    EXPECT_THAT(tokenizer->prefix(), ElementsAre());
    EXPECT_EQ(tokenizer->end_of_document(), 1);
    write("/m/tokenizer_config.json", R"({"added_tokens_decoder": {"269": {"content": "<|im_start|>"}}})");
    EXPECT_THAT(refusal("/m"), HasSubstr("269 is not in the tokenizer.model, which ends at 268"));
    write("/m/tokenizer.model", "nonsense");
    EXPECT_THAT(refusal("/m"), HasSubstr("/m/tokenizer.model is not a sentencepiece model"));
}

}  // namespace
}  // namespace perigee
