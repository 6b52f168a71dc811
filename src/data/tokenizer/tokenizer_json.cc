#include "data/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/unicode.h"
#include "io/strict_json.h"

namespace perigee {

namespace {

using Json = nlohmann::json;

constexpr int kMaxTokenizerDepth = 32;
constexpr size_t kMaxAddedBytes = size_t{4} << 20;
constexpr char const* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// An object of the file whose every field must be asked for.
class Fields {
  public:
    Fields(Json const& object, std::string path) : object_(object), path_(std::move(path)) {
        if (!object.is_object()) refuse_value(path_, object, "an object");
    }

    std::string path(std::string const& key) const { return path_.empty() ? key : path_ + "." + key; }
    [[noreturn]] void refuse(std::string const& key, Json const& value) const {
        fail(Category::config, "{}: {} is not supported", path(key), json_excerpt(value));
    }

    /// Null where there is none.
    Json const& value(std::string const& key) {
        static Json const kNone;
        asked_.insert(key);
        auto const found = object_.find(key);
        return found == object_.end() ? kNone : *found;
    }
    bool boolean(std::string const& key, bool missing) {
        Json const& found = value(key);
        if (found.is_null()) return missing;
        if (!found.is_boolean()) refuse_value(path(key), found, "true or false");
        return found.get<bool>();
    }
    std::string const& text(std::string const& key) {
        Json const& found = value(key);
        if (!found.is_string()) refuse_value(path(key), found, "text");
        return found.get_ref<std::string const&>();
    }
    Json const& list(std::string const& key) {
        Json const& found = value(key);
        if (!found.is_array()) refuse_value(path(key), found, "a list");
        return found;
    }
    int32_t id(std::string const& key) { return to_id(value(key), path(key)); }
    /// A field that only has one meaning here: nothing, false or empty text.
    void off(std::string const& key) {
        Json const& found = value(key);
        bool const empty = found.is_string() && found.get_ref<std::string const&>().empty();
        if (!found.is_null() && !empty && found != false && found != 0) refuse(key, found);
    }
    void known(std::initializer_list<char const*> keys) { asked_.insert(keys.begin(), keys.end()); }
    /// To be called when all fields have been asked for.
    void finish() const {
        for (auto const& [key, unused] : object_.items()) {
            if (!asked_.contains(key)) fail(Category::config, "{}: unknown field", path(key));
        }
    }

    static int32_t to_id(Json const& value, std::string const& path) {
        if (!value.is_number_unsigned() || value.get<uint64_t>() >= uint64_t{1} << 31) {
            refuse_value(path, value, "a token id");
        }
        return value.get<int32_t>();
    }
    [[noreturn]] static void refuse_value(std::string const& path, Json const& value, char const* expected) {
        fail(Category::config, "{}: {} where {} is expected", path.empty() ? "file" : path, json_excerpt(value),
             expected);
    }

  private:
    Json const& object_;
    std::string path_;
    std::set<std::string> asked_;
};

class Parser {
  public:
    BpeTokenizerParts run(Json const& root) {
        Fields file(root, "");
        if (file.text("version") != "1.0") file.refuse("version", file.value("version"));
        file.known({"truncation", "padding"});  // transformers sets both anew at every call, by default to none
        normalizer(file.value("normalizer"), "normalizer");
        if (!file.value("pre_tokenizer").is_null()) pre_tokenizer(file.value("pre_tokenizer"), "pre_tokenizer");
        if (!file.value("post_processor").is_null()) post_processor(file.value("post_processor"), "post_processor");
        decoder(file.value("decoder"), "decoder");
        model(Fields(file.value("model"), "model"));
        added_tokens(file.list("added_tokens"));
        file.finish();
        pieces();
        for (int32_t const id : parts_.prefix) {
            if (static_cast<size_t>(id) >= parts_.pieces.size())
                fail(Category::config, "post_processor: id {} is no token", id);
        }
        return std::move(parts_);
    }

  private:
    void normalizer(Json const& json, std::string const& path) {
        if (json.is_null()) return;
        Fields fields(json, path);
        std::string const& type = fields.text("type");
        if (type == "NFC") {
            parts_.normalizer.push_back({NormalStep::Kind::nfc});
        } else if (type == "Prepend") {
            if (!parts_.normalizer.empty()) fields.refuse("type", "Prepend after another normalizer");
            parts_.normalizer.push_back({NormalStep::Kind::prepend, "", fields.text("prepend")});
        } else if (type == "Replace") {
            auto const [from, to] = replacement(fields);
            parts_.normalizer.push_back({NormalStep::Kind::replace, from, to});
        } else if (type == "Sequence") {
            each(fields, "normalizers", [&](Json const& part, std::string const& at) { normalizer(part, at); });
        } else {
            fields.refuse("type", type);
        }
        fields.finish();
    }

    /// What a Replace finds, a text and no pattern, and what it puts in its place.
    static std::pair<std::string, std::string> replacement(Fields& fields) {
        Fields pattern(fields.value("pattern"), fields.path("pattern"));
        std::string const from = pattern.text("String");
        if (from.empty()) pattern.refuse("String", from);
        pattern.finish();
        return {from, fields.text("content")};
    }

    template <class Use>
    static void each(Fields& fields, std::string const& key, Use const& use) {
        Json const& list = fields.list(key);
        for (size_t i = 0; i < list.size(); ++i) use(list[i], fmt::format("{}[{}]", fields.path(key), i));
    }

    void pre_tokenizer(Json const& json, std::string const& path) {
        Fields fields(json, path);
        std::string const& type = fields.text("type");
        if (byte_level_) fail(Category::config, "{}: {} after ByteLevel is not supported", path, json_excerpt(type));
        if (type == "Sequence") {
            each(fields, "pretokenizers", [&](Json const& part, std::string const& at) { pre_tokenizer(part, at); });
        } else if (type == "ByteLevel") {
            if (fields.boolean("add_prefix_space", true)) {
                if (!parts_.split.empty() || parts_.marks_spaces) fields.refuse("add_prefix_space", true);
                parts_.prefix_text.assign(1, ' ');
                parts_.prefix_scheme = PrefixScheme::always;
            }
            fields.known({"trim_offsets"});
            if (fields.boolean("use_regex", true)) split(kByteLevelPattern, path);
            byte_level_ = true;
        } else if (type == "Metaspace") {
            metaspace(fields, path);
        } else if (type == "Digits") {
            split(fields.boolean("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)", path);
        } else if (type == "Split") {
            split_step(fields);
        } else {
            fields.refuse("type", type);
        }
        fields.finish();
    }

    void metaspace(Fields& fields, std::string const& path) {
        if (!parts_.split.empty() || parts_.marks_spaces) fields.refuse("type", "Metaspace after other steps");
        if (fields.text("replacement") != kSpaceMark) fields.refuse("replacement", fields.value("replacement"));
        fields.known({"str_rep"});
        parts_.marks_spaces = true;
        parts_.prefix_text = kSpaceMark;
        // Files of older releases have add_prefix_space alone.
        bool const adds = fields.boolean("add_prefix_space", true);
        Json const& scheme = fields.value("prepend_scheme");
        if (scheme == "always" || (scheme.is_null() && adds)) {
            parts_.prefix_scheme = PrefixScheme::always;
        } else if (scheme == "first") {
            parts_.prefix_scheme = PrefixScheme::first;
        } else if (!scheme.is_null() && scheme != "never") {
            fields.refuse("prepend_scheme", scheme);
        }
        if (!fields.boolean("split", true)) return;
        split(literal_pattern(kSpaceMark), path);
        parts_.split.back().behavior = MatchBehavior::merged_with_next;
    }

    /// Decoding of bytes undoes their spelling; of characters, it makes spaces of marks, and bytes of their tokens.
    void decoder(Json const& json, std::string const& path) {
        Fields fields(json, path);
        std::string const& type = fields.text("type");
        if (byte_level_ != (type == "ByteLevel")) fields.refuse("type", type);
        if (type == "ByteLevel") {
            fields.known({"add_prefix_space", "trim_offsets", "use_regex"});  // do nothing when decoding
        } else if (type == "Metaspace") {
            if (fields.text("replacement") != kSpaceMark) fields.refuse("replacement", fields.value("replacement"));
            bool const adds = fields.boolean("add_prefix_space", true);
            Json const& scheme = fields.value("prepend_scheme");
            fields.known({"split", "str_rep"});
            parts_.marks_pieces = true;
            if (scheme.is_null() ? adds : scheme != "never") parts_.decode_strip = DecodeStrip::spaces_of_first_token;
        } else if (type == "Sequence") {
            each(fields, "decoders", [&](Json const& part, std::string const& at) { decoder_step(part, at); });
        } else {
            fields.refuse("type", type);
        }
        fields.finish();
    }

    void decoder_step(Json const& json, std::string const& path) {
        Fields fields(json, path);
        std::string const& type = fields.text("type");
        if (type == "Replace") {
            if (replacement(fields) != std::pair{std::string(kSpaceMark), std::string(" ")})
                fields.refuse("type", type);
            parts_.marks_pieces = true;
        } else if (type == "ByteFallback") {
            byte_pieces_ = true;
        } else if (type == "Strip") {
            if (fields.text("content") != " ") fields.refuse("content", fields.value("content"));
            if (fields.value("start") != 1 || fields.value("stop") != 0) fields.refuse("start", fields.value("start"));
            parts_.decode_strip = DecodeStrip::one_space;
        } else if (type != "Fuse") {
            fields.refuse("type", type);
        }
        fields.finish();
    }

    void split_step(Fields& fields) {
        static constexpr std::array<std::pair<char const*, MatchBehavior>, 5> kBehaviors{{
            {"Removed", MatchBehavior::removed},
            {"Isolated", MatchBehavior::isolated},
            {"MergedWithPrevious", MatchBehavior::merged_with_previous},
            {"MergedWithNext", MatchBehavior::merged_with_next},
            {"Contiguous", MatchBehavior::contiguous},
        }};
        Fields pattern(fields.value("pattern"), fields.path("pattern"));
        bool const literal = !pattern.value("String").is_null();
        split(literal ? literal_pattern(pattern.text("String")) : pattern.text("Regex"), fields.path("pattern"));
        pattern.finish();
        std::string const& behavior = fields.text("behavior");
        auto const found = std::find_if(kBehaviors.begin(), kBehaviors.end(),
                                        [&](auto const& known) { return behavior == known.first; });
        if (found == kBehaviors.end()) fields.refuse("behavior", behavior);
        parts_.split.back().behavior = found->second;
        parts_.split.back().invert = fields.boolean("invert", false);
    }

    void split(std::string const& pattern, std::string const& path) {
        if (parts_.split.size() == kMaxSplits) fail(Category::config, "{}: more than {} splits", path, kMaxSplits);
        try {
            parts_.split.push_back({Regex(pattern)});
        } catch (Error const& error) {
            fail(Category::config, "{}: {}", path, error.what());
        }
    }

    void post_processor(Json const& json, std::string const& path) {
        Fields fields(json, path);
        std::string const& type = fields.text("type");
        if (type == "Sequence") {
            each(fields, "processors", [&](Json const& part, std::string const& at) { post_processor(part, at); });
        } else if (type == "TemplateProcessing") {
            template_processing(fields);
        } else if (type == "ByteLevel") {
            fields.known({"add_prefix_space", "trim_offsets", "use_regex"});  // change offsets, not tokens
        } else {
            fields.refuse("type", type);
        }
        fields.finish();
    }

    /// What stands before a single text. Pairs of texts do not occur here.
    void template_processing(Fields& fields) {
        fields.known({"pair"});
        if (!parts_.prefix.empty()) fail(Category::config, "{}: a second one", fields.path("type"));
        Json const& tokens = fields.value("special_tokens");
        bool after_text = false;
        each(fields, "single", [&](Json const& part, std::string const& at) {
            Fields item(part, at);
            if (part.contains("Sequence")) {
                if (after_text) item.refuse("Sequence", part);
                item.known({"Sequence"});
                after_text = true;
            } else {
                Fields special(item.value("SpecialToken"), item.path("SpecialToken"));
                special.known({"type_id"});
                if (after_text) special.refuse("id", "a token after the text");
                prefix_token(tokens, special.text("id"), fields.path("special_tokens"));
                special.finish();
            }
            item.finish();
        });
    }

    void prefix_token(Json const& tokens, std::string const& name, std::string const& path) {
        Fields all(tokens, path);
        Fields token(all.value(name), all.path(name));
        token.known({"id", "tokens"});
        each(token, "ids",
             [&](Json const& id, std::string const& at) { parts_.prefix.push_back(Fields::to_id(id, at)); });
        token.finish();
    }

    void model(Fields fields) {
        Json const& type = fields.value("type");  // GPT-2's own file has none
        if (!type.is_null() && type != "BPE") fields.refuse("type", type);
        for (char const* const key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) fields.off(key);
        bool const fallback = fields.boolean("byte_fallback", false);
        if (fallback && byte_level_) fields.refuse("byte_fallback", true);
        parts_.model.whole_words = fields.boolean("ignore_merges", false);
        parts_.model.characters = !byte_level_;
        parts_.model.join_unknown = fields.boolean("fuse_unk", false);
        vocabulary(fields.value("vocab"), fields.path("vocab"));
        if (fallback) byte_tokens();
        if (Json const& unknown = fields.value("unk_token"); !unknown.is_null()) {
            auto const found = vocab_.find(fields.text("unk_token"));
            // The reference stops at the first character that would need it.
            if (found != vocab_.end())
                parts_.model.unknown = found->second;
            else if (!every_byte_has_a_token())
                fields.refuse("unk_token", unknown);
        }
        merges(fields.list("merges"), fields.path("merges"));
        fields.finish();
    }

    void vocabulary(Json const& vocab, std::string const& path) {
        if (!vocab.is_object()) Fields::refuse_value(path, vocab, "an object");
        for (auto const& [token, json] : vocab.items()) {
            int32_t const id = Fields::to_id(json, path);
            claim(id, token, path);
            vocab_.emplace(token, id);
            auto const bytes = byte_level_ ? bytes_of_token(token) : token;
            if (bytes && !bytes->empty()) parts_.model.ids.emplace(*bytes, id);
        }
    }

    bool every_byte_has_a_token() const {
        for (int byte = 0; byte < 256; ++byte)
            if (!byte_level_ || !parts_.model.ids.contains({static_cast<char>(byte)})) return false;
        return true;
    }

    static std::string byte_token(int byte) { return fmt::format("<0x{:02X}>", byte); }
    void byte_tokens() {
        auto& ids = parts_.model.fallback.emplace();
        for (int byte = 0; byte < 256; ++byte) {
            auto const found = vocab_.find(byte_token(byte));
            ids[static_cast<size_t>(byte)] = found == vocab_.end() ? -1 : found->second;
        }
    }

    /// Ids are few enough for the tokens there are, so that no file makes a table of more than its own size.
    void claim(int32_t id, std::string const& token, std::string const& path) {
        if (!spelling_.emplace(id, token).second) {
            fail(Category::config, "{}: {} and {} have the same id {}", path, json_excerpt(token),
                 json_excerpt(spelling_[id]), id);
        }
    }

    void merges(Json const& list, std::string const& path) {
        parts_.model.merges.reserve(list.size());
        for (size_t i = 0; i < list.size(); ++i) {
            auto const [left, right] = merge_pair(list[i], path, i);
            auto const id = [&](std::string const& token) {
                auto const found = vocab_.find(token);
                if (found == vocab_.end())
                    fail(Category::config, "{}[{}]: {} is not in vocab", path, i, json_excerpt(token));
                return found->second;
            };
            parts_.model.merges.push_back({id(left), id(right), id(left + right)});
        }
    }

    /// Spelled "a b" or ["a", "b"].
    static std::pair<std::string, std::string> merge_pair(Json const& merge, std::string const& path, size_t i) {
        if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
            return {merge[0].get<std::string>(), merge[1].get<std::string>()};
        }
        std::string const text = merge.is_string() ? merge.get<std::string>() : "";
        size_t const space = text.find(' ');
        if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
            Fields::refuse_value(fmt::format("{}[{}]", path, i), merge, "a pair of tokens");
        }
        return {text.substr(0, space), text.substr(space + 1)};
    }

    void added_tokens(Json const& list) {
        size_t bytes = 0;
        for (size_t i = 0; i < list.size(); ++i) {
            Fields fields(list[i], fmt::format("added_tokens[{}]", i));
            AddedToken token;
            token.id = fields.id("id");
            token.content = fields.text("content");
            token.special = fields.boolean("special", false);
            token.single_word = fields.boolean("single_word", false);
            token.lstrip = fields.boolean("lstrip", false);
            token.rstrip = fields.boolean("rstrip", false);
            token.normalized = fields.boolean("normalized", !token.special);
            fields.finish();
            bytes += token.content.size();
            if (token.content.empty()) fields.refuse("content", token.content);
            if (bytes > kMaxAddedBytes) {
                fail(Category::config, "added_tokens: more than {} bytes of text", kMaxAddedBytes);
            }
            auto const known = vocab_.find(token.content);
            if (known == vocab_.end()) {
                claim(token.id, token.content, fields.path("id"));
            } else if (known->second != token.id) {
                fail(Category::config, "{}: {} has the id {} in model.vocab", fields.path("id"),
                     json_excerpt(token.content), known->second);
            }
            parts_.added.push_back(std::move(token));
        }
    }

    void pieces() {
        int32_t largest = 0;
        for (auto const& [id, token] : spelling_) largest = std::max(largest, id);
        if (static_cast<size_t>(largest) > 2 * spelling_.size() + kMaxUnusedIds) {
            fail(Category::config, "the id {} is too large for {} tokens", largest, spelling_.size());
        }
        parts_.pieces.resize(static_cast<size_t>(largest) + 1);
        for (auto const& [id, token] : spelling_) piece(id) = text_of(token);
        for (auto const& token : parts_.added) {
            // The reference reads the spelling of added tokens as bytes too, and normalizes it before.
            std::string const content = token.normalized ? normalized(token.content, parts_.normalizer) : token.content;
            piece(token.id) = token.special ? token.content : text_of(content);
        }
        for (int byte = 0; byte_pieces_ && byte < 256; ++byte)
            if (auto const found = vocab_.find(byte_token(byte)); found != vocab_.end())
                piece(found->second) = static_cast<char>(byte);
    }

    std::string text_of(std::string const& token) const {
        if (byte_level_) return bytes_of_token(token).value_or(token);
        NormalStep const unmark{NormalStep::Kind::replace, std::string(kSpaceMark), " "};
        return parts_.marks_pieces ? normalized(token, {unmark}) : token;
    }

    std::string& piece(int32_t id) { return parts_.pieces[static_cast<size_t>(id)]; }

    static constexpr size_t kMaxSplits = 64;
    static constexpr size_t kMaxUnusedIds = 4096;

    BpeTokenizerParts parts_;
    bool byte_level_ = false;
    bool byte_pieces_ = false;                           ///< tokens such as <0x0A> are that byte
    std::unordered_map<std::string, int32_t> vocab_;     ///< ids of tokens as spelled in the file
    std::unordered_map<int32_t, std::string> spelling_;  ///< the same with the added ones, by id
};

}  // namespace

BpeTokenizerParts parse_tokenizer_json(std::string const& text, std::string const& where) {
    if (static_cast<int64_t>(text.size()) > kMaxTokenizerBytes) {
        fail(Category::config, "{}: {} bytes; at most {} are read", where, text.size(), kMaxTokenizerBytes);
    }
    check_json(text, where, Category::config, kMaxTokenizerDepth);
    try {
        BpeTokenizerParts parts = Parser().run(Json::parse(text));
        parts.name = where;
        return parts;
    } catch (Error const& error) {
        throw Error(error.category(), fmt::format("{}: {}", where, error.what()));
    }
}

}  // namespace perigee
