#include "checkpoint/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "io/sha256.h"
#include "io/strict_json.h"

namespace perigee {

namespace {

using Json = nlohmann::json;

constexpr char kFormat[] = "perigee-checkpoint";
constexpr int64_t kVersion = 1;
constexpr std::string_view kHead = "{\"sha256\":\"";
constexpr std::string_view kMiddle = "\",\n\"manifest\":";
constexpr std::string_view kTail = "}\n";
constexpr size_t kHashDigits = 64;
constexpr DType kTypes[] = {DType::f32, DType::f64, DType::bf16, DType::i32, DType::i64, DType::u8};

Json to_json(Shape const& shape) {
    Json list = Json::array();
    for (int i = 0; i < shape.rank(); ++i) list.push_back(shape[i]);
    return list;
}

Json to_json(Manifest::Piece const& piece) {
    Shard const& s = piece.shard;
    return {{"file", piece.file},
            {"dataset", piece.dataset},
            {"begin", to_json(s.begin)},
            {"extent", to_json(s.extent)},
            {"flat", {s.flat_begin, s.flat_count}}};
}

Json to_json(RunState::Spikes const& spikes) {
    return {{"losses", spikes.losses},       {"grad_norms", spikes.grad_norms},         {"last", spikes.last},
            {"rollbacks", spikes.rollbacks}, {"rolled_back_to", spikes.rolled_back_to}, {"kept", spikes.kept}};
}

Json to_json(RunState const& state) {
    Json json{{"step", state.step},
              {"consumed_samples", state.consumed_samples},
              {"applied_updates", state.applied_updates},
              {"skipped_in_a_row", state.skipped_in_a_row},
              {"seed", state.seed},
              {"spikes", to_json(state.spikes)},
              {"run_id", state.run_id},
              {"options", state.options},
              {"data", state.data},
              {"info", state.info}};
    if (state.consumed_tokens) json["consumed_tokens"] = *state.consumed_tokens;
    if (state.without_loss_in_a_row > 0) json["without_loss_in_a_row"] = state.without_loss_in_a_row;
    if (state.best) json["best"] = {{"step", state.best->step}, {"loss", state.best->loss}};
    return json;
}

/// Reads values out of untrusted JSON; every failure names the place.
class Parser {
  public:
    explicit Parser(std::string const& where) : where_(where) {}

    template <class... Args>
    [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
        throw DamagedError(fmt::format("{}: {}", where_, fmt::format(format, std::forward<Args>(args)...)));
    }

    Json const& at(Json const& object, char const* key) const {
        if (!object.is_object() || !object.contains(key)) refuse("`{}` is missing", key);
        return object[key];
    }
    int64_t count(Json const& value, char const* what) const {
        if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
            refuse("`{}` is {}; a count was expected", what, json_excerpt(value));
        }
        return value.get<int64_t>();
    }
    int64_t count_at(Json const& object, char const* key) const { return count(at(object, key), key); }
    std::string text_at(Json const& object, char const* key) const {
        Json const& value = at(object, key);
        if (!value.is_string()) refuse("`{}` is {}; a text was expected", key, json_excerpt(value));
        return value.get<std::string>();
    }
    Json const& list_at(Json const& object, char const* key) const {
        Json const& value = at(object, key);
        if (!value.is_array()) refuse("`{}` is {}; a list was expected", key, json_excerpt(value));
        return value;
    }
    Shape shape_at(Json const& object, char const* key) const {
        Json const& list = list_at(object, key);
        if (list.size() > Shape::kMaxRank) refuse("`{}` has {} dimensions", key, list.size());
        std::vector<int64_t> extents;
        for (Json const& extent : list) extents.push_back(count(extent, key));
        int64_t size = 1;
        for (int64_t extent : extents) {
            if (__builtin_mul_overflow(size, std::max<int64_t>(extent, 1), &size)) refuse("`{}` is absurd", key);
        }
        return Shape(std::span<int64_t const>(extents));
    }

    std::map<std::string, std::string> texts_at(Json const& object, char const* key) const {
        Json const& json = at(object, key);
        if (!json.is_object()) refuse("`{}` is {}", key, json_excerpt(json));
        std::map<std::string, std::string> texts;
        for (auto const& [name, value] : json.items()) texts[name] = text_at(json, name.c_str());
        return texts;
    }

    double number(Json const& value, char const* what) const {
        if (!value.is_number()) refuse("`{}` is {}; a number was expected", what, json_excerpt(value));
        return value.get<double>();
    }

    RunState::Spikes spikes(Json const& object) const {
        RunState::Spikes spikes{.last = count_at(object, "last"),
                                .rollbacks = count_at(object, "rollbacks"),
                                .rolled_back_to = count_at(object, "rolled_back_to")};
        for (Json const& x : list_at(object, "losses")) spikes.losses.push_back(number(x, "losses"));
        for (Json const& x : list_at(object, "grad_norms")) spikes.grad_norms.push_back(number(x, "grad_norms"));
        for (Json const& x : list_at(object, "kept")) spikes.kept.push_back(count(x, "kept"));
        return spikes;
    }

    RunState state(Json const& object) const {
        RunState state{.step = count_at(object, "step"),
                       .consumed_samples = count_at(object, "consumed_samples"),
                       .applied_updates = count_at(object, "applied_updates"),
                       .skipped_in_a_row = count_at(object, "skipped_in_a_row"),
                       .info = {}};
        Json const& seed = at(object, "seed");
        if (!seed.is_number_unsigned()) refuse("`seed` is {}; a count was expected", json_excerpt(seed));
        state.seed = seed.get<uint64_t>();
        state.info = texts_at(object, "info");
        // What older programs did not write.
        if (object.contains("without_loss_in_a_row"))
            state.without_loss_in_a_row = count_at(object, "without_loss_in_a_row");
        if (object.contains("consumed_tokens")) state.consumed_tokens = count_at(object, "consumed_tokens");
        if (object.contains("run_id")) state.run_id = text_at(object, "run_id");
        if (object.contains("options")) state.options = text_at(object, "options");
        if (object.contains("data")) state.data = texts_at(object, "data");
        if (object.contains("best")) {
            double const loss = number(at(at(object, "best"), "loss"), "loss");
            state.best = {.step = count_at(object["best"], "step"), .loss = loss};
        }
        if (object.contains("spikes")) state.spikes = spikes(object["spikes"]);
        return state;
    }

    Manifest::File file(Json const& object) const {
        Manifest::File file{text_at(object, "name"), count_at(object, "bytes"), text_at(object, "sha256")};
        auto plain = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.'; };
        if (file.name.empty() || file.name.size() > 255 || file.name.front() == '.' || file.name == kManifestName ||
            !std::all_of(file.name.begin(), file.name.end(), plain)) {
            refuse("{} is not the plain name of a file in its folder", json_excerpt(file.name));
        }
        return file;
    }

    Manifest::Tensor tensor(Json const& object, std::string const& name, size_t files) const {
        Manifest::Tensor tensor;
        std::string const dtype = text_at(object, "dtype");
        auto const* const known =
            std::find_if(std::begin(kTypes), std::end(kTypes), [&](DType type) { return to_string(type) == dtype; });
        if (known == std::end(kTypes)) refuse("tensor `{}` has the unknown type `{}`", name, dtype);
        tensor.dtype = *known;
        tensor.shape = shape_at(object, "shape");
        for (Json const& piece : list_at(object, "pieces")) tensor.pieces.push_back(this->piece(piece, tensor, name));
        for (Manifest::Piece const& piece : tensor.pieces) {
            if (piece.file >= files) refuse("tensor `{}` refers to file {} of {}", name, piece.file, files);
        }
        return tensor;
    }

  private:
    Manifest::Piece piece(Json const& object, Manifest::Tensor const& tensor, std::string const& name) const {
        Manifest::Piece piece{static_cast<size_t>(count_at(object, "file")), text_at(object, "dataset"), {}};
        Json const& flat = list_at(object, "flat");
        if (flat.size() != 2) refuse("`flat` of tensor `{}` is not a pair", name);
        Shard& s = piece.shard;
        s = {.global = tensor.shape,
             .begin = shape_at(object, "begin"),
             .extent = shape_at(object, "extent"),
             .flat_begin = count(flat[0], "flat"),
             .flat_count = count(flat[1], "flat")};
        bool inside = s.begin.rank() == s.global.rank() && s.extent.rank() == s.global.rank();
        for (int i = 0; inside && i < s.global.rank(); ++i) {
            inside = s.begin[i] <= s.global[i] && s.extent[i] <= s.global[i] - s.begin[i];
        }
        if (!inside) {
            refuse("a piece of tensor `{}` {} begins at {} and extends {}", name, s.global.str(), s.begin.str(),
                   s.extent.str());
        }
        if (s.flat_begin > s.extent.size() || s.flat_count > s.extent.size() - s.flat_begin) {
            refuse("a piece of tensor `{}` holds {} elements from {} on of a box of {}", name, s.flat_count,
                   s.flat_begin, s.extent.str());
        }
        return piece;
    }

    std::string const& where_;
};

/// The JSON text of the manifest proper, proved by the hash before it.
std::string_view verified_body(std::string_view text, Parser const& parser) {
    size_t const body_begin = kHead.size() + kHashDigits + kMiddle.size();
    if (!text.starts_with(kHead)) parser.refuse("this is not the manifest of a perigee checkpoint");
    if (text.size() < body_begin + kTail.size() || !text.ends_with(kTail) ||
        text.substr(kHead.size() + kHashDigits, kMiddle.size()) != kMiddle) {
        parser.refuse("the manifest is incomplete or damaged");
    }
    std::string_view const expected = text.substr(kHead.size(), kHashDigits);
    std::string_view const body = text.substr(body_begin, text.size() - body_begin - kTail.size());
    std::string const found = sha256(body);
    if (found != expected) parser.refuse("the manifest's SHA-256 is {}; its first line says {}", found, expected);
    return body;
}

void check_tensor(Manifest const& manifest, std::string const& name, Manifest::Tensor const& tensor,
                  std::string const& where) {
    int64_t stored = 0;
    for (Manifest::Piece const& piece : tensor.pieces) {
        int64_t const count = piece.shard.flat_count;
        int64_t bytes = 0;
        if (__builtin_mul_overflow(count, size_of(tensor.dtype), &bytes) || bytes > manifest.files[piece.file].bytes) {
            fail_damaged("{}: {} elements of tensor `{}` do not fit in {}", where, count, name,
                         manifest.files[piece.file].name);
        }
        // Comparing sums first bounds the list of runs below by the bytes that files really hold.
        if (__builtin_add_overflow(stored, count, &stored) || stored > tensor.shape.size()) {
            fail_damaged("{}: more than the {} elements of tensor `{}` are stored", where, tensor.shape.size(), name);
        }
    }
    if (stored != tensor.shape.size()) {
        fail_damaged("{}: {} elements of tensor `{}` are stored; its shape {} has {}", where, stored, name,
                     tensor.shape.str(), tensor.shape.size());
    }
    std::vector<Shard::Run> runs;
    for (Manifest::Piece const& piece : tensor.pieces) {
        auto const more = piece.shard.runs();
        runs.insert(runs.end(), more.begin(), more.end());
    }
    std::sort(runs.begin(), runs.end(), [](auto const& a, auto const& b) { return a.global < b.global; });
    int64_t end = 0;
    for (Shard::Run const& run : runs) {
        if (run.global != end) {
            fail_damaged("{}: element {} of tensor `{}` is {}", where, std::min(run.global, end), name,
                         run.global < end ? "stored twice" : "missing");
        }
        end = run.global + run.count;
    }
}

}  // namespace

void Manifest::merge(Manifest const& other) {
    size_t const first = files.size();
    files.insert(files.end(), other.files.begin(), other.files.end());
    for (auto const& [name, tensor] : other.tensors) {
        Tensor& mine = tensors.try_emplace(name, Tensor{tensor.dtype, tensor.shape, {}}).first->second;
        if (mine.dtype != tensor.dtype || mine.shape != tensor.shape) {
            fail(Category::checkpoint, "ranks disagree about tensor `{}`: {} {} and {} {}", name, to_string(mine.dtype),
                 mine.shape.str(), to_string(tensor.dtype), tensor.shape.str());
        }
        for (Piece piece : tensor.pieces) {
            piece.file += first;
            mine.pieces.push_back(std::move(piece));
        }
    }
}

void Manifest::check_pieces(std::string const& where) const {
    for (auto const& [name, tensor] : tensors) check_tensor(*this, name, tensor, where);
}

std::string Manifest::to_text() const {
    Json listed_files = Json::array(), listed_tensors = Json::array();
    for (File const& f : files) listed_files.push_back({{"name", f.name}, {"bytes", f.bytes}, {"sha256", f.sha256}});
    for (auto const& [name, tensor] : tensors) {
        Json pieces = Json::array();
        for (Piece const& piece : tensor.pieces) pieces.push_back(to_json(piece));
        listed_tensors.push_back({{"name", name},
                                  {"dtype", to_string(tensor.dtype)},
                                  {"shape", to_json(tensor.shape)},
                                  {"pieces", std::move(pieces)}});
    }
    Json const body{{"format", kFormat},
                    {"version", kVersion},
                    {"state", to_json(state)},
                    {"files", std::move(listed_files)},
                    {"tensors", std::move(listed_tensors)}};
    std::string const text = body.dump();
    return fmt::format("{}{}{}{}{}", kHead, sha256(text), kMiddle, text, kTail);
}

Manifest Manifest::parse(std::string const& text, std::string const& where) {
    Parser const parser(where);
    Json const body = Json::parse(verified_body(text, parser), nullptr, /*allow_exceptions=*/false);
    if (body.is_discarded()) parser.refuse("the manifest is not JSON");
    if (std::string const format = parser.text_at(body, "format"); format != kFormat) {
        parser.refuse("its format is `{}`; `{}` was expected", format, kFormat);
    }
    if (int64_t const version = parser.count_at(body, "version"); version != kVersion) {
        fail(Category::checkpoint, "{}: it was written in format version {}; this program reads version {}", where,
             version, kVersion);
    }
    Manifest manifest;
    manifest.state = parser.state(parser.at(body, "state"));
    std::set<std::string> names;
    for (Json const& file : parser.list_at(body, "files")) {
        manifest.files.push_back(parser.file(file));
        if (!names.insert(manifest.files.back().name).second) {
            parser.refuse("file `{}` is listed twice", manifest.files.back().name);
        }
    }
    for (Json const& tensor : parser.list_at(body, "tensors")) {
        std::string const name = parser.text_at(tensor, "name");
        bool const fresh = manifest.tensors.emplace(name, parser.tensor(tensor, name, manifest.files.size())).second;
        if (!fresh) parser.refuse("tensor `{}` is listed twice", name);
    }
    return manifest;
}

}  // namespace perigee
