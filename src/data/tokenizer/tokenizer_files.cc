#include "data/tokenizer/tokenizer_files.h"

#include <nlohmann/json.hpp>

#include "data/tokenizer/sentencepiece_tokenizer.h"
#include "data/tokenizer/tokenizer_json.h"
#include "io/strict_json.h"

namespace perigee {

namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;
constexpr int kMaxConfigDepth = 64;

/// An object from a file, empty where there is no such file.
Json read_object(FileSystem& files, Path const& path) {
    if (!files.exists(path)) return Json::object();
    std::string const text = files.read_text(path, kMaxConfigBytes);
    check_json(text, path.string(), Category::config, kMaxConfigDepth);
    Json object = Json::parse(text);
    if (!object.is_object()) fail(Category::config, "{}: not a JSON object", path.string());
    return object;
}

Json const& value(Json const& object, char const* key) {
    static Json const kNone;
    auto const found = object.find(key);
    return found == object.end() ? kNone : *found;
}

/// What the files beside the tokenizer say.
class Beside {
  public:
    Beside(FileSystem& files, Path const& folder)
        : tokenizer_path_(folder / "tokenizer_config.json"),
          model_path_(folder / "config.json"),
          tokenizer_(read_object(files, tokenizer_path_)),
          model_(read_object(files, model_path_)) {}

    template <class Find>
    std::optional<int32_t> end_of_document(Find const& find, int64_t vocab_size) const {
        Json const& token = value(tokenizer_, "eos_token");
        Json const& name = token.is_object() ? value(token, "content") : token;
        if (!name.is_null()) {
            if (!name.is_string()) refuse(tokenizer_path_, "eos_token", name);
            auto const id = find(name.get_ref<std::string const&>());
            if (!id) refuse(tokenizer_path_, "eos_token", name);
            return id;
        }
        Json const& ids = value(model_, "eos_token_id");
        Json const& id = ids.is_array() && !ids.empty() ? ids[0] : ids;
        if (id.is_null()) return std::nullopt;
        if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size)) {
            refuse(model_path_, "eos_token_id", id);
        }
        return id.get<int32_t>();
    }

    bool add_bos() const {
        Json const& wanted = value(tokenizer_, "add_bos_token");
        return wanted.is_null() || wanted == true;
    }

    /// Tokens that other files add to a sentencepiece model would be missing.
    void check_added(int64_t vocab_size) const {
        for (auto const& [id, token] : value(tokenizer_, "added_tokens_decoder").items()) {
            bool const known = id.size() < 10 && id.find_first_not_of("0123456789") == std::string::npos &&
                               !id.empty() && std::stoll(id) < vocab_size;
            if (known) continue;
            fail(Category::config,
                 "{}: added_tokens_decoder: the token {} is not in the tokenizer.model, which ends at {}; added tokens "
                 "are supported with a tokenizer.json",
                 tokenizer_path_.string(), id, vocab_size - 1);
        }
    }

  private:
    [[noreturn]] static void refuse(Path const& path, char const* key, Json const& found) {
        fail(Category::config, "{}: {}: {} is no token of the tokenizer beside it", path.string(), key,
             json_excerpt(found));
    }

    Path tokenizer_path_, model_path_;
    Json tokenizer_, model_;
};

std::unique_ptr<Tokenizer> open_json(FileSystem& files, Path const& path, Beside const& beside) {
    BpeTokenizerParts parts = parse_tokenizer_json(files.read_text(path, kMaxTokenizerBytes), path.string());
    auto const find = [&](std::string const& name) -> std::optional<int32_t> {
        for (AddedToken const& token : parts.added) {
            if (token.content == name) return token.id;
        }
        auto const found = parts.model.ids.find(name);
        return found == parts.model.ids.end() ? std::nullopt : std::optional(found->second);
    };
    parts.end_of_document = beside.end_of_document(find, static_cast<int64_t>(parts.pieces.size()));
    return make_bpe_tokenizer(std::move(parts));
}

std::unique_ptr<Tokenizer> open_model(FileSystem& files, Path const& path, Beside const& beside) {
    SentencePieceParts parts;
    parts.name = path.string();
    parts.model = files.read_text(path, kMaxTokenizerBytes);
    parts.add_bos = beside.add_bos();
    auto tokenizer = make_sentencepiece_tokenizer(parts);
    beside.check_added(tokenizer->vocab_size());
    auto const find = [&](std::string const& name) { return tokenizer->find(name); };
    auto const end = beside.end_of_document(find, tokenizer->vocab_size());
    if (!end) return tokenizer;
    parts.end_of_document = end;
    return make_sentencepiece_tokenizer(parts);
}

}  // namespace

bool has_tokenizer(FileSystem& files, Path const& folder) {
    return files.exists(folder / "tokenizer.model") || files.exists(folder / "tokenizer.json");
}

std::unique_ptr<Tokenizer> open_tokenizer(FileSystem& files, Path const& path) {
    Path file = path;
    if (files.is_directory(path)) {
        file = path / "tokenizer.model";
        if (!files.exists(file)) file = path / "tokenizer.json";
        if (!files.exists(file)) {
            fail(Category::config, "{}: neither tokenizer.model nor tokenizer.json is in this folder", path.string());
        }
    } else if (!files.exists(path)) {
        fail(Category::config, "tokenizer \"{}\": no such file or folder; the tokenizer without a file is \"bytes\"",
             path.string());
    }
    Beside const beside(files, file.parent_path());
    return file.extension() == ".json" ? open_json(files, file, beside) : open_model(files, file, beside);
}

}  // namespace perigee
