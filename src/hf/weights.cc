#include "hf/weights.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "io/strict_json.h"

namespace perigee {

namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxIndexBytes = int64_t{16} << 20;
constexpr int kMaxIndexDepth = 4;
constexpr int64_t kComparedAtOnce = int64_t{1} << 20;
constexpr char kHead[] = "lm_head.weight", kEmbedding[] = "model.embed_tokens.weight";

/// A file of the folder itself: no path can lead out of it.
bool is_plain_name(std::string const& name) {
    auto const plain = [](unsigned char c) { return c < 128 && (std::isalnum(c) || c == '_' || c == '-' || c == '.'); };
    return !name.empty() && name.size() <= 255 && name.front() != '.' && std::ranges::all_of(name, plain);
}

/// Stored by some releases although nothing reads them.
bool is_without_use(std::string const& name, bool tied) {
    return name.ends_with(".rotary_emb.inv_freq") || (tied && name == kHead);
}

}  // namespace

HfWeights::HfWeights(FileSystem& files, Path const& folder) : folder_(folder) {
    if (files.exists(folder / kWeightsName)) {
        add(files, kWeightsName);
    } else if (files.exists(folder / kIndexName)) {
        read_index(files);
    } else {
        for (char const* const pickled : {"pytorch_model.bin", "pytorch_model.bin.index.json"})
            if (files.exists(folder / pickled))
                fail(Category::checkpoint, "{} holds {}, but neither {} nor {}: only safetensors are read",
                     folder.string(), pickled, kWeightsName, kIndexName);
        fail(Category::checkpoint, "{} holds neither {} nor {}", folder.string(), kWeightsName, kIndexName);
    }
    find_places();
}

HfWeights::HfWeights(FileSystem& files, Path const& folder, std::string const& name) : folder_(folder) {
    add(files, name);
    find_places();
}

std::vector<Path> HfWeights::files() const {
    std::vector<Path> paths;
    for (SafetensorsFile const& file : files_) paths.push_back(file.path());
    return paths;
}

void HfWeights::find_places() {
    for (size_t i = 0; i < files_.size(); ++i) {
        for (auto const& [name, tensor] : files_[i].tensors()) {
            auto const [place, fresh] = places_.emplace(name, Place{i, &tensor});
            if (!fresh)
                fail(Category::checkpoint, "tensor `{}` is in {} and again in {}", name,
                     files_[place->second.file].path().string(), files_[i].path().string());
        }
    }
}

void HfWeights::add(FileSystem& files, std::string const& name) {
    try {
        files_.emplace_back(files, folder_ / name);
    } catch (IoError const& error) {
        throw Error(Category::checkpoint, error.what());
    }
}

void HfWeights::read_index(FileSystem& files) {
    Path const path = folder_ / kIndexName;
    std::string const text = files.read_text(path, kMaxIndexBytes);
    check_json(text, path.string(), Category::checkpoint, kMaxIndexDepth);
    Json const index = Json::parse(text);
    if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
        fail(Category::checkpoint, "{}: there is no object `weight_map`", path.string());
    std::map<std::string, std::set<std::string>> tensors_of;
    for (auto const& [name, file] : index["weight_map"].items()) {
        if (!file.is_string() || !is_plain_name(file.get<std::string>()))
            fail(Category::checkpoint, "{}: tensor `{}`: {} is not the plain name of a file in the folder",
                 path.string(), name.substr(0, 200), json_excerpt(file));
        tensors_of[file.get<std::string>()].insert(name);
    }
    for (auto const& [file, expected] : tensors_of) {
        add(files, file);
        auto const& found = files_.back().tensors();
        for (std::string const& name : expected)
            if (!found.contains(name))
                fail(Category::checkpoint, "{}: tensor `{}` should be in {}, which lacks it", path.string(), name,
                     file);
        for (auto const& [name, tensor] : found)
            if (!expected.contains(name))
                fail(Category::checkpoint, "{}: tensor `{}` is in {}, where the index does not expect it",
                     path.string(), name, file);
    }
}

std::map<std::string, Shape> HfWeights::shapes() const {
    std::map<std::string, Shape> all;
    for (auto const& [name, place] : places_) all[name] = place.tensor->shape;
    return all;
}

HfWeights::Place const& HfWeights::find(std::string const& name) const {
    auto const found = places_.find(name);
    if (found == places_.end()) fail(Category::checkpoint, "{} has no tensor `{}`", folder_.string(), name);
    return found->second;
}

ElementType HfWeights::type(std::string const& name) const {
    Place const& place = find(name);
    if (auto const known = element_type(place.tensor->dtype)) return *known;
    fail(Category::checkpoint, "{}: tensor `{}` is {}; F32, BF16 and F16 can be read",
         files_[place.file].path().string(), name, place.tensor->dtype);
}

ElementType HfWeights::type(std::span<ParamSpec const> specs) const {
    std::set<ElementType> types;
    for (ParamSpec const& spec : specs) types.insert(type(spec.name));
    return types.size() == 1 ? *types.begin() : ElementType::f32;
}

void HfWeights::check(std::span<ParamSpec const> specs) const {
    std::set<std::string> known;
    for (ParamSpec const& spec : specs) {
        Place const& place = find(spec.name);
        std::string const file = files_[place.file].path().string();
        (void)type(spec.name);
        if (place.tensor->shape != spec.shape)
            fail(Category::checkpoint, "{}: tensor `{}` is {}; the model's options make it {}", file, spec.name,
                 place.tensor->shape.str(), spec.shape.str());
        known.insert(spec.name);
    }
    bool const tied = !known.contains(kHead);
    for (auto const& [name, place] : places_)
        if (!known.contains(name) && !is_without_use(name, tied))
            fail(Category::checkpoint, "{}: tensor `{}` has no place in the model that the options describe",
                 files_[place.file].path().string(), name);
    if (tied && places_.contains(kHead)) check_tied();
}

/// Reads both tensors.
void HfWeights::check_tied() const {
    Place const &head = find(kHead), &embedding = find(kEmbedding);
    auto const differ = [&](std::string const& how) {
        fail(Category::checkpoint,
             "{}: tensor `{}` {}, though config.json has `tie_word_embeddings`: true. Set it to false there to keep "
             "both "
             "tensors, or remove `{}` from the file",
             files_[head.file].path().string(), kHead, how, kHead);
    };
    Shape const shape = head.tensor->shape;
    if (shape != embedding.tensor->shape)
        differ(fmt::format("is {} and `{}` is {}", shape.str(), kEmbedding, embedding.tensor->shape.str()));
    std::vector<float> a, b;
    for (int64_t at = 0; at < shape.size(); at += kComparedAtOnce) {
        auto const count = static_cast<size_t>(std::min(kComparedAtOnce, shape.size() - at));
        a.resize(count);
        b.resize(count);
        files_[head.file].read(*head.tensor, type(kHead), at, a);
        files_[embedding.file].read(*embedding.tensor, type(kEmbedding), at, b);
        auto const found = std::ranges::mismatch(a, b, [](float x, float y) { return x == y || (x != x && y != y); });
        if (found.in1 != a.end())
            differ(fmt::format("differs from `{}` (element {}: {} and {})", kEmbedding, at + (found.in1 - a.begin()),
                               *found.in1, *found.in2));
    }
}

void HfWeights::read(std::string const& name, Shard const& shard, std::span<float> values) const {
    Place const& place = find(name);
    ElementType const stored = type(name);
    PERIGEE_CHECK(place.tensor->shape == shard.global && std::ssize(values) == shard.flat_count,
                  "{} values of `{}` {} for a part of {}", values.size(), name, place.tensor->shape.str(),
                  shard.global.str());
    try {
        for (Shard::Run const& run : shard.runs())
            files_[place.file].read(*place.tensor, stored, run.global,
                                    values.subspan(static_cast<size_t>(run.local), static_cast<size_t>(run.count)));
    } catch (IoError const& error) {
        throw Error(Category::checkpoint, error.what());
    }
}

}  // namespace perigee
