#include "data/tokenizer/bpe_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "base/philox.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/tokenizer_json.h"
#include "support/tiny_tokenizer.h"

namespace perigee {
namespace {

using ::testing::ElementsAre;
using testing::TinyTokenizer;
using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> make(TinyTokenizer const& file) {
    return make_bpe_tokenizer(parse_tokenizer_json(file.json(), "tiny"));
}

std::string added(std::string const& content, std::string const& more) {
    return fmt::format(R"([{{"id": 260, "content": "{}", {}}}])", content, more);
}

/// Bytes, for texts in which nothing merges.
Ids bytes(std::string const& text) {
    return {reinterpret_cast<unsigned char const*>(text.data()),
            reinterpret_cast<unsigned char const*>(text.data()) + text.size()};
}

TEST(BpeTokenizer, MergesWordsByTheOrderOfTraining) {
    auto const tokenizer = make({});
    EXPECT_THAT(tokenizer->encode("hello world"), ElementsAre(258, 'o', 259, 'o', 'r', 'l', 'd'));
    EXPECT_EQ(tokenizer->decode(tokenizer->encode("hello world")), "hello world");
    EXPECT_EQ(tokenizer->vocab_size(), 260);
    EXPECT_EQ(tokenizer->piece(259), " w");
    EXPECT_EQ(tokenizer->find(" w"), 259);
    EXPECT_EQ(tokenizer->find("wo"), std::nullopt);
}

TEST(BpeTokenizer, MergesAreSpelledInTwoWays) {
    auto const pairs = make({}), strings = make({.merges_in_one_string = true});
    EXPECT_EQ(pairs->encode("hello well"), strings->encode("hello well"));
}

/// The definition: merge the leftmost of the best pairs until there is none.
Ids merge_naively(std::vector<std::string> symbols, std::map<std::pair<std::string, std::string>, size_t> const& ranks,
                  Tokenizer const& tokenizer) {
    for (;;) {
        size_t best = ~size_t{0}, at = 0;
        for (size_t i = 0; i + 1 < symbols.size(); ++i) {
            auto const found = ranks.find({symbols[i], symbols[i + 1]});
            if (found != ranks.end() && found->second < best) best = found->second, at = i;
        }
        if (best == ~size_t{0}) break;
        symbols[at] += symbols[at + 1];
        symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(at) + 1);
    }
    Ids ids;
    for (auto const& symbol : symbols) ids.push_back(*tokenizer.find(symbol));
    return ids;
}

TEST(BpeTokenizer, RandomMergesAndWordsAgreeWithTheDefinition) {
    for (uint64_t trial = 0; trial < 20; ++trial) {
        Philox const random(trial, Purpose::mock_data);
        uint64_t draw = 0;
        auto const below = [&](size_t n) {
            return static_cast<size_t>(random.uniform(draw++) * static_cast<double>(n));
        };
        TinyTokenizer file;
        file.merges.clear();
        std::vector<std::string> tokens = {"a", "b", "c"};
        std::map<std::pair<std::string, std::string>, size_t> ranks;
        while (ranks.size() < 60) {
            std::pair const merge{tokens[below(tokens.size())], tokens[below(tokens.size())]};
            std::string const merged = merge.first + merge.second;
            if (merged.size() > 12 || std::count(tokens.begin(), tokens.end(), merged) > 0) continue;
            ranks.emplace(merge, ranks.size());
            file.merges.push_back(merge);
            tokens.push_back(merged);
        }
        auto const tokenizer = make(file);
        for (int word = 0; word < 100; ++word) {
            std::vector<std::string> symbols(1 + below(50));
            std::string text;
            for (auto& symbol : symbols) text += symbol = tokens[below(3)];
            Ids const expected = merge_naively(symbols, ranks, *tokenizer);
            ASSERT_EQ(tokenizer->encode(text), expected) << text;
            ASSERT_EQ(tokenizer->encode(text), expected) << text << " from the cache";
        }
    }
}

TEST(BpeTokenizer, IgnoreMergesTakesWholeWords) {
    TinyTokenizer file;
    file.merges.push_back({"e", "l"});
    file.merges.push_back({"h", "el"});  // merging never gets there: "he" comes first
    EXPECT_THAT(make(file)->encode("hel"), ElementsAre(256, 'l'));
    file.more_model = R"("ignore_merges": true)";
    EXPECT_THAT(make(file)->encode("hel hell"), ElementsAre(261, ' ', 258));
}

TEST(BpeTokenizer, BrokenUtf8IsTheReplacementCharacter) {
    auto const tokenizer = make({});
    EXPECT_EQ(tokenizer->encode("a\xE2\x82z\xFF"), bytes("a\xEF\xBF\xBDz\xEF\xBF\xBD"));
}

TEST(BpeTokenizer, NormalizesToFormC) {
    TinyTokenizer file{.normalizer = R"({"type": "Sequence", "normalizers": [{"type": "NFC"}]})"};
    EXPECT_EQ(make(file)->encode("e\u0301 \u1100\u1161"), bytes("\u00e9 \uac00"));
    EXPECT_EQ(make({})->encode("e\u0301"), bytes("e\u0301"));
    // In pieces as in one: a long text of which every second character combines with the one before.
    std::string text, composed;
    for (int i = 0; i < 9000; ++i) text += "\u0415\u0308", composed += "\u0401";
    EXPECT_EQ(make(file)->encode(text), make(file)->encode(composed));
}

TEST(BpeTokenizer, SpecialTokensAreOnlyReadInTemplates) {
    TinyTokenizer file{.added_tokens = added("<|end|>", R"("special": true)")};
    auto const tokenizer = make(file);
    EXPECT_EQ(tokenizer->encode("a<|end|>"), bytes("a<|end|>"));
    EXPECT_THAT(tokenizer->encode_with_special("<|end|>a<|end|><|end|>b<|end"),
                ElementsAre(260, 'a', 260, 260, 'b', '<', '|', 'e', 'n', 'd'));
    EXPECT_TRUE(tokenizer->is_special(260));
    EXPECT_EQ(tokenizer->decode({'a', 260, 'b'}), "ab");
    EXPECT_EQ(tokenizer->piece(260), "<|end|>");
    EXPECT_EQ(tokenizer->find("<|end|>"), 260);
}

TEST(BpeTokenizer, AddedTokensOfTextAreAlwaysRead) {
    auto const tokenizer = make({.added_tokens = added("<think>", R"("special": false)")});
    EXPECT_THAT(tokenizer->encode("a<think>"), ElementsAre('a', 260));
    EXPECT_EQ(tokenizer->decode({260}), "<think>");
}

TEST(BpeTokenizer, AddedTokensTakeSpaceOrStandAlone) {
    auto const strips = make({.added_tokens = added("MASK", R"("lstrip": true, "rstrip": true)")});
    EXPECT_THAT(strips->encode("a \t MASK \u3000MASK\nb"), ElementsAre('a', 260, 260, 'b'));
    auto const alone = make({.added_tokens = added("MASK", R"("single_word": true)")});
    EXPECT_EQ(alone->encode("aMASK MASK\u00e9 1MASK"), bytes("aMASK MASK\u00e9 1MASK"));
    EXPECT_THAT(alone->encode("MASK.MASK"), ElementsAre(260, '.', 260));
}

TEST(BpeTokenizer, AnAddedTokenInTheWhiteSpaceOfTheOneBeforeCountsUnlessItTakesSpaceToo) {
    TinyTokenizer file;
    file.added_tokens = R"([{"id": 260, "content": "</s>", "rstrip": true}, {"id": 261, "content": "\n\n"},
                            {"id": 262, "content": "  ", "lstrip": true}])";
    EXPECT_THAT(make(file)->encode("</s>\n\n\nb"), ElementsAre(260, 261, '\n', 'b'));
    EXPECT_THAT(make(file)->encode("</s>  b"), ElementsAre(260, 'b'));
}

TEST(BpeTokenizer, NamesWithAGuardAreTextAndGuardsAreLeftOut) {
    TinyTokenizer file{.added_tokens = added("<|end|>", R"("special": true, "rstrip": true)"),
                       .normalizer = R"({"type": "NFC"})"};
    std::string const guarded = "<" + std::string(kGuard) + "|end|> ";
    EXPECT_EQ(make(file)->encode_guarded("a" + guarded), bytes("a<|end|> "));
    EXPECT_THAT(make(file)->encode_guarded("<|end|>\n" + std::string(kGuard) + "<|end|>"), ElementsAre(260, 260));
}

TEST(BpeTokenizer, TheLongestAddedTokenCounts) {
    TinyTokenizer file;
    file.added_tokens =
        R"([{"id": 260, "content": "<a"}, {"id": 261, "content": "<ab>"}, {"id": 262, "content": "<abc"}])";
    EXPECT_THAT(make(file)->encode("<ab><abd<abc"), ElementsAre(261, 260, 'b', 'd', 262));
}

TEST(BpeTokenizer, NormalizedAddedTokensAreFoundInNormalizedText) {
    TinyTokenizer file{.added_tokens = added("caf\u00e9", R"("normalized": true)"), .normalizer = R"({"type": "NFC"})"};
    EXPECT_THAT(make(file)->encode("cafe\u0301"), ElementsAre(260));
    file.added_tokens = added("caf\u00e9", R"("normalized": false)");
    EXPECT_EQ(make(file)->encode("cafe\u0301"), bytes("caf\u00e9"));
}

TEST(BpeTokenizer, PrefixSpace) {
    TinyTokenizer file{.added_tokens = added("<a>", R"("special": false)")};
    file.pre_tokenizer = R"({"type": "ByteLevel", "add_prefix_space": true})";
    EXPECT_THAT(make(file)->encode("w<a>w w"), ElementsAre(259, 260, 259, 259));
}

TEST(BpeTokenizer, BytesWithoutATokenAreDroppedOrUnknown) {
    auto const made = [](char const* unknown, bool join) {
        auto json = nlohmann::json::parse(TinyTokenizer{.added_tokens = added("<unk>", R"("special": true)")}.json());
        json["model"]["vocab"].erase("z");
        json["model"]["vocab"]["<unk>"] = 260;
        json["model"]["unk_token"] = nlohmann::json::parse(unknown);
        json["model"]["fuse_unk"] = join;
        return make_bpe_tokenizer(parse_tokenizer_json(json.dump(), "file"));
    };
    // What Hugging Face's tokenizers 0.22 give for these files; "hezll" loses its z before anything is merged.
    EXPECT_THAT(made("null", false)->encode("azzb hezll"), ElementsAre('a', 'b', ' ', 258));
    EXPECT_THAT(made("\"<unk>\"", false)->encode("azzb"), ElementsAre('a', 260, 260, 'b'));
    EXPECT_THAT(made("\"<unk>\"", true)->encode("azzbz"), ElementsAre('a', 260, 'b', 260));
    EXPECT_THAT(made("null", false)->encode("zz"), ElementsAre());
}

/// As in Llama 2: characters, spaces as U+2581, bytes for what is no token. Ids: bytes from 0, then the tokens below.
std::string characters(std::string const& normalizer, std::string const& pre_tokenizer) {
    nlohmann::json vocab, merges;
    for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = byte;
    for (char const* const token : {"<unk>", "<s>", "\u2581", "h", "i", "\u4e2d", "hi", "\u2581hi", "\u2581\u2581"})
        vocab[token] = vocab.size();
    for (auto const& [left, right] : {std::pair{"h", "i"}, {"\u2581", "hi"}, {"\u2581", "\u2581"}})
        merges.push_back(nlohmann::json::array({left, right}));
    return fmt::format(
        R"({{"version": "1.0", "added_tokens": [{{"id": 257, "content": "<s>", "special": true}}], "normalizer": {},
           "pre_tokenizer": {}, "post_processor": null, "decoder": {{"type": "Sequence", "decoders": [
           {{"type": "Replace", "pattern": {{"String": "\u2581"}}, "content": " "}}, {{"type": "ByteFallback"}},
           {{"type": "Fuse"}}, {{"type": "Strip", "content": " ", "start": 1, "stop": 0}}]}},
           "model": {{"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": {},
           "merges": {}}}}})",
        normalizer, pre_tokenizer, vocab.dump(), merges.dump());
}
enum CharacterId : int32_t { kBegin = 257, kMark, kH, kI, kHan, kHi, kMarkHi, kTwoMarks };

std::unique_ptr<Tokenizer> make_characters(std::string const& normalizer, std::string const& pre_tokenizer) {
    return make_bpe_tokenizer(parse_tokenizer_json(characters(normalizer, pre_tokenizer), "file"));
}

TEST(BpeTokenizer, CharactersWithBytesForWhatIsNoToken) {
    auto const tokenizer = make_characters(R"({"type": "Sequence", "normalizers": [{"type": "Prepend",
        "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]})",
                                           "null");
    EXPECT_THAT(tokenizer->encode("hi  hi\u4e2d"), ElementsAre(kMarkHi, kMark, kMarkHi, kHan));
    EXPECT_THAT(tokenizer->encode("\nx\u00e9"), ElementsAre(kMark, '\n', 'x', 0xC3, 0xA9));
    EXPECT_THAT(tokenizer->encode("hi", TextAfter::text), ElementsAre(kHi));
    EXPECT_THAT(tokenizer->encode_with_special("hi<s>hi"), ElementsAre(kMarkHi, kBegin, kMarkHi));
    EXPECT_THAT(tokenizer->encode(""), ElementsAre());
    EXPECT_EQ(tokenizer->decode({kBegin, kMarkHi, kMark, kMarkHi, 0xC3, 0xA9}), "hi  hi\u00e9");
    EXPECT_EQ(tokenizer->piece(kMarkHi), " hi");
    EXPECT_EQ(tokenizer->find(" hi"), kMarkHi);
}

TEST(BpeTokenizer, MetaspacePutsAMarkBeforeTheFirstOrEveryStretch) {
    auto const metaspace = [](char const* more) {
        return make_characters("null", fmt::format(R"({{"type": "Metaspace", "replacement": "\u2581", {}}})", more));
    };
    auto const first = metaspace(R"("prepend_scheme": "first", "split": false)");
    EXPECT_THAT(first->encode_with_special("hi<s>hi"), ElementsAre(kMarkHi, kBegin, kHi));
    EXPECT_THAT(first->encode_with_special("<s>hi"), ElementsAre(kBegin, kHi));
    EXPECT_THAT(first->encode(" hi  h"), ElementsAre(kMarkHi, kTwoMarks, kH));
    EXPECT_THAT(first->encode("hi", TextAfter::special), ElementsAre(kHi));
    auto const always = metaspace(R"("prepend_scheme": "always", "split": true)");
    EXPECT_THAT(always->encode_with_special("<s>hi  h"), ElementsAre(kBegin, kMarkHi, kMark, kMark, kH));
    EXPECT_THAT(always->encode("hi", TextAfter::special), ElementsAre(kMarkHi));
    EXPECT_THAT(always->encode("hi", TextAfter::text), ElementsAre(kHi));
    EXPECT_THAT(metaspace(R"("add_prefix_space": false)")->encode("hi hi"), ElementsAre(kHi, kMarkHi));
    EXPECT_THAT(metaspace(R"("add_prefix_space": true)")->encode("hi"), ElementsAre(kMarkHi));
}

TEST(BpeTokenizer, MetaspaceDecodesTheFirstTokenWithoutMarksButWithSpacesOfItsOwn) {
    auto file = nlohmann::json::parse(characters("null", R"({"type": "Metaspace", "replacement": "\u2581"})"));
    file["decoder"] = {{"type", "Metaspace"}, {"replacement", "\u2581"}};
    file["added_tokens"].push_back({{"id", 265}, {"content", "  "}});
    auto const tokenizer = make_bpe_tokenizer(parse_tokenizer_json(file.dump(), "file"));
    EXPECT_EQ(tokenizer->decode({kMarkHi, kMarkHi}), "hi hi");
    EXPECT_EQ(tokenizer->decode({265, kMarkHi}), "   hi");
    EXPECT_EQ(tokenizer->decode({kTwoMarks, kHi}), "hi");
    file["added_tokens"].back()["normalized"] = true;
    file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
    auto const marks = make_bpe_tokenizer(parse_tokenizer_json(file.dump(), "file"));
    EXPECT_EQ(marks->decode({265, kMarkHi}), " hi");  // its spaces are made marks
}

TEST(BpeTokenizer, EveryThreadGetsTheSame) {
    auto const tokenizer = make({});
    std::string text;
    for (int i = 0; i < 2000; ++i) text += fmt::format("hello {} wow\n", i * i);
    Ids const expected = tokenizer->encode(text);
    std::vector<Ids> found(4);
    {
        std::vector<std::jthread> threads;
        for (auto& ids : found) threads.emplace_back([&] { ids = tokenizer->encode(text); });
    }
    EXPECT_THAT(found, ::testing::Each(expected));
}

TEST(BpeTokenizer, IdsOutsideTheVocabularyAreRefused) {
    auto const tokenizer = make({});
    for (int32_t const id : {-1, 260}) EXPECT_THROW(tokenizer->piece(id), Error);
    EXPECT_FALSE(tokenizer->is_special(-1));
}

TEST(ByteAlphabet, EveryByteHasAVisibleSpelling) {
    std::string all;
    for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
    std::string const token = token_of_bytes(all);
    EXPECT_EQ(token.find_first_of(" \n\t"), std::string::npos);
    EXPECT_EQ(bytes_of_token(token), all);
    EXPECT_EQ(token_of_bytes(" \n"), "\u0120\u010a");  // as GPT-2's vocabulary has them
    EXPECT_EQ(bytes_of_token("\u4e2d"), std::nullopt);
    EXPECT_EQ(bytes_of_token(" "), std::nullopt);
}

}  // namespace
}  // namespace perigee
