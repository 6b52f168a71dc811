#include "data/tokenizer/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megatron_files.h"
#include "support/tiny_tokenizer.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TinyTokenizer;
using Json = nlohmann::json;

std::string refusal(std::string const& text) {
    return testing::error_of(Category::config, [&] { parse_tokenizer_json(text, "some/tokenizer.json"); });
}

/// The file with one value replaced, or removed where none is given.
std::string changed(char const* pointer, char const* value) {
    TinyTokenizer file{.added_tokens = R"([{"id": 260, "content": "<a>", "special": true}])"};
    file.pre_tokenizer = R"({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated", "invert": false},
        {"type": "Digits", "individual_digits": true}, {"type": "ByteLevel", "add_prefix_space": false}]})";
    file.normalizer = R"({"type": "NFC"})";
    file.post_processor = R"({"type": "TemplateProcessing", "pair": [],
        "single": [{"SpecialToken": {"id": "<a>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<a>": {"id": "<a>", "ids": [260], "tokens": ["<a>"]}}})";
    Json json = Json::parse(file.json());
    if (value == nullptr) {
        Json::json_pointer const at(pointer);
        json.at(at.parent_pointer()).erase(at.back());
    } else {
        json[Json::json_pointer(pointer)] = Json::parse(value);
    }
    return json.dump();
}

TEST(TokenizerJson, ReadsWhatItKnows) {
    auto const parts = parse_tokenizer_json(changed("/version", "\"1.0\""), "x");
    ASSERT_EQ(parts.normalizer.size(), 1u);
    EXPECT_EQ(parts.normalizer[0].kind, NormalStep::Kind::nfc);
    EXPECT_EQ(parts.split.size(), 3u);
    EXPECT_EQ(parts.split[2].behavior, MatchBehavior::isolated);
    EXPECT_THAT(parts.prefix, ElementsAre(260));
    EXPECT_EQ(parts.pieces.size(), 261u);
    EXPECT_EQ(parts.model.merges.size(), 4u);
}

TEST(TokenizerJson, FieldsThatAreMissingHaveTheirDefaults) {
    EXPECT_NO_THROW(parse_tokenizer_json(changed("/model/type", nullptr), "x"));  // GPT-2's own file
    EXPECT_NO_THROW(parse_tokenizer_json(changed("/truncation", nullptr), "x"));
    EXPECT_NO_THROW(parse_tokenizer_json(changed("/post_processor", "null"), "x"));
    EXPECT_NO_THROW(parse_tokenizer_json(changed("/normalizer", "null"), "x"));
    EXPECT_NO_THROW(parse_tokenizer_json(changed("/model/unk_token", "\"<a>\""), "x"));
    // transformers sets both anew at every call.
    EXPECT_NO_THROW(parse_tokenizer_json(changed("/truncation", R"({"max_length": 5})"), "x"));
    EXPECT_NO_THROW(parse_tokenizer_json(changed("/padding", R"({"strategy": "BatchLongest"})"), "x"));
}

TEST(TokenizerJson, WhatIsNotUnderstoodIsRefusedByItsPath) {
    struct Case {
        char const* pointer;
        char const* value;
        char const* message;
    };
    Case const cases[] = {
        {"/version", "\"2.0\"", "version: \"2.0\" is not supported"},
        {"/surprise", "1", "surprise: unknown field"},
        {"/normalizer/type", "\"NFKC\"", "normalizer.type: \"NFKC\" is not supported"},
        {"/normalizer/more", "1", "normalizer.more: unknown field"},
        {"/pre_tokenizer", "null", "decoder.type: \"ByteLevel\""},
        {"/pre_tokenizer/pretokenizers", R"([{"type": "Digits"}])", "decoder.type: \"ByteLevel\""},
        {"/pre_tokenizer/pretokenizers/1", R"({"type": "Metaspace", "replacement": "_"})", "Metaspace after other"},
        {"/normalizer", R"({"type": "Replace", "pattern": {"Regex": "a"}, "content": "b"})",
         "normalizer.pattern.String"},
        {"/normalizer", R"({"type": "Replace", "pattern": {"String": ""}, "content": "b"})", "String: \"\" is not"},
        {"/pre_tokenizer/pretokenizers/1/type", "\"Whitespace\"", "pretokenizers[1].type: \"Whitespace\""},
        {"/pre_tokenizer/pretokenizers/1/type", "\"ByteLevel\"", "pretokenizers[1].add_prefix_space: true"},
        {"/pre_tokenizer/pretokenizers/2/add_prefix_space", "true", "add_prefix_space: true is not"},
        {"/pre_tokenizer/pretokenizers/3", R"({"type": "Digits"})", "pretokenizers[3]: \"Digits\" after ByteLevel"},
        {"/pre_tokenizer/pretokenizers/0/behavior", "\"Merged\"", "pretokenizers[0].behavior: \"Merged\""},
        {"/pre_tokenizer/pretokenizers/0/pattern", "{}", "pattern.Regex: null where text"},
        {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\"\\\\w*\"", "pretokenizers[0].pattern: the pattern"},
        {"/pre_tokenizer/pretokenizers/0/pattern/Glob", "\"*\"", "pattern.Glob: unknown field"},
        {"/pre_tokenizer/pretokenizers/0/invert", "1", "invert: 1 where true or false"},
        {"/post_processor/type", "\"BertProcessing\"", "post_processor.type: \"BertProcessing\""},
        {"/post_processor/single/2", R"({"SpecialToken": {"id": "<a>", "type_id": 0}})", "a token after the text"},
        {"/post_processor/special_tokens/<a>/ids", "[261]", "id 261 is no token"},
        {"/post_processor/special_tokens/<a>/ids", "[-1]", "ids[0]: -1 where a token id"},
        {"/decoder/type", "\"Metaspace\"", "decoder.type: \"Metaspace\""},
        {"/decoder", "null", "decoder: null where an object"},
        {"/model/type", "\"Unigram\"", "model.type: \"Unigram\""},
        {"/model/dropout", "0.1", "model.dropout: 0.1 is not supported"},
        {"/model/byte_fallback", "true", "model.byte_fallback: true"},
        {"/model/end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix"},
        {"/model/more", "[]", "model.more: unknown field"},
        {"/model/vocab", "[]", "model.vocab: [] where an object"},
        {"/model/vocab/a", "98", "have the same id 98"},
        {"/model/vocab/a", "1e3", "model.vocab: 1000.0 where a token id"},
        {"/model/vocab/more", "2147483648", "model.vocab: 2147483648 where a token id"},
        {"/model/vocab/more", "2147483647", "2147483647 is too large for 262 tokens"},
        {"/model/merges/1", R"(["l", "q"])", "model.merges[1]: \"lq\" is not in vocab"},
        {"/model/merges/1", R"(["l", "l", "l"])", "model.merges[1]: [\"l\",\"l\",\"l\"] where a pair"},
        {"/model/merges/1", R"("l l l")", "model.merges[1]: \"l l l\" where a pair"},
        {"/added_tokens/0/content", "\"\"", "added_tokens[0].content: \"\" is not"},
        {"/added_tokens/0/content", "\"a\"", "added_tokens[0].id: \"a\" has the id 97 in model.vocab"},
        {"/added_tokens/0/id", "97", "have the same id 97"},
        {"/added_tokens/0/strip", "true", "added_tokens[0].strip: unknown field"},
    };
    for (Case const& c : cases) {
        EXPECT_THAT(refusal(changed(c.pointer, c.value)),
                    AllOf(HasSubstr("some/tokenizer.json: "), HasSubstr(c.message)))
            << c.pointer;
    }
}

TEST(TokenizerJson, WhatIsNoJsonIsRefused) {
    EXPECT_THAT(refusal("{\"version\": "), HasSubstr("not JSON"));
    EXPECT_THAT(refusal(R"({"version": "1.0", "version": "1.0"})"), HasSubstr("twice"));
    EXPECT_THAT(refusal(std::string(100, '[')), HasSubstr("deeper"));
    EXPECT_THAT(refusal("[]"), HasSubstr("file: [] where an object"));
}

}  // namespace
}  // namespace perigee
