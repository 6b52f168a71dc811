// tokenizer.json, and texts through the tokenizers that are accepted. An input is a whole file, or, where that is
// empty, the parts of one around a vocabulary of all bytes, and last a text: token ids are in the vocabulary, and
// decode.
#include "data/tokenizer/tokenizer_json.h"

#include <algorithm>

#include "fuzz/fuzz.h"
#include "support/tiny_tokenizer.h"

namespace perigee::testing {

namespace {

constexpr size_t kMaxTextBytes = 4096;  // a pattern may take the square of it

std::vector<std::string> pieces_of(TinyTokenizer const& file, std::string const& text) {
    return {
        "",  file.added_tokens, file.normalizer, file.pre_tokenizer, file.post_processor, file.decoder, file.more_model,
        text};
}

void use(Tokenizer const& tokenizer, std::string const& text) {
    for (auto const& ids : {tokenizer.encode(text), tokenizer.encode_with_special(text), tokenizer.prefix()}) {
        StreamDecoder stream(tokenizer);
        for (int32_t const id : ids) {
            PERIGEE_CHECK(0 <= id && id < tokenizer.vocab_size(), "token id {}", id);
            (void)stream.push(id);
        }
        (void)stream.finish();
        (void)tokenizer.decode(ids);
    }
    (void)tokenizer.find(text);
    PERIGEE_CHECK(!tokenizer.is_special(-1), "-1 is no token");
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
    std::string const text = "hello we'LL see 12345 <a> \xE2\x82 e\u0301\n\n  <b>x";
    TinyTokenizer const plain;
    TinyTokenizer rich;
    rich.added_tokens = R"([{"id": 260, "content": "<a>", "special": true, "lstrip": true, "rstrip": true},
        {"id": 261, "content": "<b>", "single_word": true, "normalized": true}])";
    rich.normalizer = R"({"type": "NFC"})";
    rich.pre_tokenizer = R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex":
        "(?i:'s|'ll)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\s+"}, "behavior": "MergedWithNext",
        "invert": true}, {"type": "Digits", "individual_digits": true},
        {"type": "Split", "pattern": {"String": "e"}, "behavior": "Removed", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})";
    rich.post_processor = R"({"type": "Sequence", "processors": [{"type": "ByteLevel"},
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<a>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
        "special_tokens": {"<a>": {"id": "<a>", "ids": [260], "tokens": ["<a>"]}}}]})";
    rich.more_model = R"("ignore_merges": true)";
    TinyTokenizer strings = plain;
    strings.merges_in_one_string = true;
    std::string const characters = R"({"version": "1.0", "added_tokens": [{"id": 1, "content": "<s>", "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"}, {"type": "Replace",
        "pattern": {"String": "l"}, "content": "L"}]}, "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581",
        "prepend_scheme": "first", "split": true}, "decoder": {"type": "Sequence", "decoders": [{"type": "Replace",
        "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}, "model": {"type": "BPE", "unk_token": "<unk>",
        "fuse_unk": true, "byte_fallback": true, "vocab": {"<unk>": 0, "<s>": 1, "<0x0A>": 2, "h": 3, "e": 4, "he": 5,
        "\u2581": 6}, "merges": ["h e"]}})";
    TinyTokenizer oniguruma = plain;
    oniguruma.pre_tokenizer = R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex":
        "\\b(?<w>\\w)\\w*|[\\s&&[^\\n]]+$"}, "behavior": "Contiguous", "invert": false}, {"type": "ByteLevel"}]})";
    return {Pieces::join({characters, text}),     Pieces::join(pieces_of(oniguruma, text)),
            Pieces::join(pieces_of(plain, text)), Pieces::join(pieces_of(rich, text)),
            Pieces::join({plain.json(), text}),   Pieces::join({rich.json(), text}),
            Pieces::join({strings.json(), text})};
}

}  // namespace perigee::testing

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
    using namespace perigee;
    testing::Pieces pieces(data, size);
    std::string json = pieces.next();
    if (json.empty()) {
        testing::TinyTokenizer file;
        for (std::string* part : {&file.added_tokens, &file.normalizer, &file.pre_tokenizer, &file.post_processor,
                                  &file.decoder, &file.more_model}) {
            *part = pieces.next();
        }
        json = file.json();
    }
    std::string const text = pieces.rest().substr(0, testing::kMaxTextBytes);
    testing::may_refuse([&] { testing::use(*make_bpe_tokenizer(parse_tokenizer_json(json, "file")), text); });
    return 0;
}
