#include "data/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/nfc.h"
#include "data/tokenizer/utf8.h"
#include "io/strict_json.h"

namespace perigee {

namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 32;
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
        file.off("truncation");
        file.off("padding");
        normalizer(file.value("normalizer"), "normalizer");
        pre_tokenizer(file.value("pre_tokenizer"), "pre_tokenizer");
        if (!byte_level_) fail(Category::config, "pre_tokenizer: no ByteLevel in it; only such tokenizers are known");
        if (!file.value("post_processor").is_null()) post_processor(file.value("post_processor"), "post_processor");
        Fields decoder(file.value("decoder"), "decoder");
        if (decoder.text("type") != "ByteLevel") decoder.refuse("type", decoder.value("type"));
        decoder.known({"add_prefix_space", "trim_offsets", "use_regex"});  // do nothing when decoding
        decoder.finish();
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
            parts_.nfc = true;
        } else if (type == "Sequence") {
            each(fields, "normalizers", [&](Json const& part, std::string const& at) { normalizer(part, at); });
        } else {
            fields.refuse("type", type);
        }
        fields.finish();
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
            parts_.prefix_space = fields.boolean("add_prefix_space", true);
            if (parts_.prefix_space && !parts_.split.empty()) fields.refuse("add_prefix_space", true);
            fields.known({"trim_offsets"});
            if (fields.boolean("use_regex", true)) split(kByteLevelPattern, path);
            byte_level_ = true;
        } else if (type == "Digits") {
            split(fields.boolean("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)", path);
        } else if (type == "Split") {
            split_step(fields);
        } else {
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
        for (char const* const key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) {
            fields.off(key);
        }
        fields.known({"unk_token", "fuse_unk"});  // never needed, since every byte has a token
        parts_.model.whole_words = fields.boolean("ignore_merges", false);
        vocabulary(fields.value("vocab"), fields.path("vocab"));
        merges(fields.list("merges"), fields.path("merges"));
        fields.finish();
    }

    void vocabulary(Json const& vocab, std::string const& path) {
        if (!vocab.is_object()) Fields::refuse_value(path, vocab, "an object");
        for (auto const& [token, json] : vocab.items()) {
            int32_t const id = Fields::to_id(json, path);
            claim(id, token, path);
            vocab_.emplace(token, id);
            if (auto bytes = bytes_of_token(token); bytes && !bytes->empty()) parts_.model.ids.emplace(*bytes, id);
        }
        for (int byte = 0; byte < 256; ++byte) {
            std::string const bytes{static_cast<char>(byte)};
            if (!parts_.model.ids.contains(bytes)) {
                fail(Category::config, "{}: no token \"{}\" for the byte {}", path, token_of_bytes(bytes), byte);
            }
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
        for (auto const& [id, token] : spelling_) piece(id) = bytes_of_token(token).value_or(token);
        for (auto const& token : parts_.added) {
            // The reference reads the spelling of added tokens as bytes too, and normalizes it before.
            std::string const content = token.normalized && parts_.nfc ? nfc(token.content) : token.content;
            piece(token.id) = token.special ? token.content : bytes_of_token(content).value_or(content);
        }
    }

    std::string& piece(int32_t id) { return parts_.pieces[static_cast<size_t>(id)]; }

    static constexpr size_t kMaxSplits = 64;
    static constexpr size_t kMaxUnusedIds = 4096;

    BpeTokenizerParts parts_;
    bool byte_level_ = false;
    std::unordered_map<std::string, int32_t> vocab_;     ///< ids of tokens as spelled in the file
    std::unordered_map<int32_t, std::string> spelling_;  ///< the same with the added ones, by id
};

}  // namespace

BpeTokenizerParts parse_tokenizer_json(std::string const& text, std::string const& where) {
    if (static_cast<int64_t>(text.size()) > kMaxTokenizerBytes) {
        fail(Category::config, "{}: {} bytes; at most {} are read", where, text.size(), kMaxTokenizerBytes);
    }
    check_json(text, where, Category::config, kMaxDepth);
    try {
        BpeTokenizerParts parts = Parser().run(Json::parse(text));
        parts.name = where;
        return parts;
    } catch (Error const& error) {
        throw Error(error.category(), fmt::format("{}: {}", where, error.what()));
    }
}

}  // namespace perigee
