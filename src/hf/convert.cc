#include "hf/convert.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/log.h"
#include "checkpoint/folders.h"
#include "comm/host_comm.h"
#include "hf/merge.h"
#include "hf/peft.h"
#include "hf/weights.h"
#include "model/llama.h"

namespace perigee {

namespace {

constexpr char kGenerationConfigName[] = "generation_config.json";
constexpr char const* kCompanions[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",  "vocab.json",
    "merges.txt",     "tokenizer.model",       "chat_template.jinja",     "chat_template.json", kGenerationConfigName};
constexpr char kTypeKey[] = "hf_dtype";
constexpr int64_t kBatchBytes = int64_t{128} << 20;  ///< tensors are read from a checkpoint in groups of this size
constexpr int64_t kCopyBytes = int64_t{1} << 20;
constexpr int64_t kSpareBytes = int64_t{16} << 20;  ///< room for all that is not values

/// A lock whose file goes with it.
class OutputLock {
  public:
    OutputLock(FileSystem& files, Path path)
        : files_(files), path_(std::move(path)), lock_(files.lock(path_, "another conversion")) {}
    ~OutputLock() {
        try {
            files_.remove_all(path_);
        } catch (std::exception const&) {  // the next conversion takes the file that is there
        }
    }
    OutputLock(OutputLock const&) = delete;
    OutputLock& operator=(OutputLock const&) = delete;

  private:
    FileSystem& files_;
    Path path_;
    std::unique_ptr<FileLock> lock_;
};

/// A folder that gets its name when all is in it. Left before, it goes. One at a time makes it.
class NewFolder {
  public:
    NewFolder(FileSystem& files, Path path) : files_(files), path_(std::move(path)), temporary_(path_) {
        if (!path_.has_filename()) path_ = temporary_ = path_.parent_path();
        temporary_ += ".tmp";
        refuse_existing();
        if (path_.has_parent_path()) files_.make_directories(path_.parent_path());
        lock_.emplace(files_, temporary_.string() + ".lock");
        refuse_existing();  // another conversion may have made it meanwhile
        files_.remove_all(temporary_);
        make_durable_folder(files_, temporary_);
    }
    ~NewFolder() {
        try {
            files_.remove_all(temporary_);
        } catch (std::exception const&) {  // the next conversion to this name removes it
        }
    }
    NewFolder(NewFolder const&) = delete;
    NewFolder& operator=(NewFolder const&) = delete;

    Path const& path() const { return temporary_; }
    void need(int64_t bytes) const {
        int64_t const free = files_.free_bytes(temporary_);
        if (free < bytes)
            fail(Category::config, "no room for {}: {} bytes needed, {} bytes free", path_.string(), bytes, free);
    }
    /// `made`, inside the temporary folder or itself, becomes the folder.
    void commit(Path const& made) {
        files_.sync_directory(made);
        files_.rename(made, path_);
        files_.sync_directory(path_.has_parent_path() ? path_.parent_path() : Path("."));
    }

  private:
    void refuse_existing() const {
        if (files_.exists(path_))
            fail(Category::config, "{} exists already: choose another name, or remove it", path_.string());
    }

    FileSystem& files_;
    Path path_, temporary_;
    std::optional<OutputLock> lock_;
};

void write_text(FileSystem& files, Path const& path, std::string const& text) {
    auto const file = files.create(path);
    file->write_at(0, std::as_bytes(std::span(text)));
    file->sync();
}

bool is_inside(Path const& file, Path const& folder) {
    return std::mismatch(folder.begin(), folder.end(), file.begin(), file.end()).first == folder.end();
}

/// A companion as a file of its folder. A link may lead elsewhere inside it, or to the blobs of a Hugging Face cache
/// (MODEL/snapshots/REVISION/NAME -> MODEL/blobs/HASH): a stranger's folder must not have other files copied.
Path inside(FileSystem& files, Path const& folder, std::string const& name) {
    Path const home = files.resolve(folder), file = files.resolve(folder / name);
    Path const snapshots = home.parent_path();
    bool const in_cache = snapshots.filename() == "snapshots" && is_inside(file, snapshots.parent_path() / "blobs");
    if (is_inside(file, home) || in_cache) return file;
    fail(Category::data, "{} is a link to {}, outside of its folder: put the file itself there, or remove the link",
         (folder / name).string(), file.string());
}

void copy_companions(FileSystem& files, Path const& from, Path const& to) {
    for (std::string const& name : companion_files(files, from)) {
        auto const in = files.open(inside(files, from, name));
        auto const out = files.create(to / name);
        std::vector<std::byte> buffer(static_cast<size_t>(std::min(in->size(), kCopyBytes)));
        for (int64_t at = 0; at < in->size(); at += std::ssize(buffer)) {
            auto const part =
                std::span(buffer).first(static_cast<size_t>(std::min(std::ssize(buffer), in->size() - at)));
            in->read_at(at, part);
            out->write_at(at, part);
        }
        out->sync();
    }
}

int64_t total_elements(std::vector<ParamSpec> const& specs) {
    int64_t total = 0;
    for (ParamSpec const& spec : specs) total += spec.shape.size();
    return total;
}

/// Specs [begin, end) whose values fit in `bytes` at `element` bytes each, or one that does not.
size_t group_end(std::vector<ParamSpec> const& specs, size_t begin, int64_t element, int64_t bytes) {
    size_t end = begin;
    for (int64_t sum = 0; end < specs.size(); ++end) {
        sum += specs[end].shape.size() * element;
        if (sum > bytes && end > begin) break;
    }
    return end;
}

/// Fills the parts, which are whole tensors.
using ReadTensors = std::function<void(std::vector<StoredTensor> const&)>;

/// Writes the values of `specs` to one file, a group at a time.
void export_file(FileSystem& files, ReadTensors const& read, Path const& path, ElementType type,
                 std::vector<ParamSpec> const& specs, std::function<void(int64_t)> const& done) {
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (ParamSpec const& spec : specs) tensors.push_back({spec.name, type, spec.shape});
    SafetensorsWriter writer(files, path, std::move(tensors));
    std::vector<float> values;
    for (size_t begin = 0; begin < specs.size();) {
        size_t const end = group_end(specs, begin, size_of(DType::f32), kBatchBytes);
        int64_t count = 0;
        for (size_t i = begin; i < end; ++i) count += specs[i].shape.size();
        values.resize(static_cast<size_t>(count));
        std::vector<StoredTensor> parts;
        float* to = values.data();
        for (size_t i = begin; i < end; to += specs[i++].shape.size())
            parts.push_back({specs[i].name, whole_shard(specs[i].shape), TensorView(to, specs[i].shape)});
        read(parts);
        for (StoredTensor const& part : parts) {
            writer.write(part.name, 0, {part.values.as<float>(), static_cast<size_t>(part.values.size())});
            done(part.values.size());
        }
        begin = end;
    }
    writer.finish();
}

}  // namespace

std::vector<std::string> companion_files(FileSystem& files, Path const& folder) {
    std::vector<std::string> names;
    for (char const* name : kCompanions)
        if (files.exists(folder / name)) names.emplace_back(name);
    return names;
}

ElementType source_type(Checkpoint const& checkpoint) {
    auto const found = checkpoint.state().info.find(kTypeKey);
    if (found == checkpoint.state().info.end()) return ElementType::f32;
    return element_type(found->second).value_or(ElementType::f32);
}

void import_checkpoint(FileSystem& files, Path const& folder, Path const& output, ConversionProgress const& progress) {
    HfConfig const config = read_hf_config(files, folder);
    std::vector<ParamSpec> const specs = llama_params(config.model);
    HfWeights const weights(files, folder);
    weights.check(specs);
    NewFolder made(files, output);
    int64_t largest = 0;
    for (ParamSpec const& spec : specs) largest = std::max(largest, spec.shape.size());
    std::vector<float> values(static_cast<size_t>(largest));
    std::vector<StoredTensor> parts;
    for (ParamSpec const& spec : specs)
        parts.push_back({spec.name, whole_shard(spec.shape), TensorView(values.data(), spec.shape)});
    int64_t const total = total_elements(specs) * size_of(DType::f32);
    int64_t done = 0;
    RunState state;
    state.info = {{kTypeKey, config_name(weights.type(specs))}, {"source", folder.string()}};
    auto const alone = make_single_host_comm();
    CheckpointSave save(files, *alone, made.path(), state, stored_bytes(parts), {});
    save.write(parts, [&](StoredTensor const& part) {
        weights.read(part.name, part.shard, std::span(values).first(static_cast<size_t>(part.values.size())));
        done += part.values.bytes();
        progress(done, total);
    });
    save.commit();
    Path const step = made.path() / step_name(state.step);
    write_text(files, step / kConfigName, config.text);
    copy_companions(files, folder, step);
    made.commit(step);
}

void export_folder(FileSystem& files, Checkpoint const& checkpoint, ExportOptions const& options, Path const& output,
                   ConversionProgress const& progress) {
    bool const has_config = !options.origin.empty() && files.exists(options.origin / kConfigName);
    std::string const config = write_hf_config(options.model, options.attention, options.type,
                                               has_config ? read_hf_config(files, options.origin).text : "");
    std::vector<ParamSpec> const specs = base_params(options.model);
    MergedWeights weights(files, checkpoint, options.model, options.base);
    ReadTensors const read = [&](std::vector<StoredTensor> const& parts) { weights.read(parts); };
    int64_t const element = size_of(options.type), total = total_elements(specs) * element;
    NewFolder made(files, output);
    made.need(total + kSpareBytes);
    std::vector<std::vector<ParamSpec>> shards;
    for (size_t begin = 0; begin < specs.size();) {
        size_t const end = group_end(specs, begin, element, options.shard_bytes);
        shards.emplace_back(specs.begin() + static_cast<int64_t>(begin), specs.begin() + static_cast<int64_t>(end));
        begin = end;
    }
    nlohmann::json map = nlohmann::json::object();
    int64_t done = 0;
    for (size_t i = 0; i < shards.size(); ++i) {
        std::string const name =
            shards.size() == 1 ? kWeightsName : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
        for (ParamSpec const& spec : shards[i]) map[spec.name] = name;
        export_file(files, read, made.path() / name, options.type, shards[i], [&](int64_t elements) {
            done += elements * element;
            progress(done, total);
        });
    }
    weights.check_base();
    nlohmann::json const index{{"metadata", {{"total_size", total}}}, {"weight_map", map}};
    if (shards.size() > 1) write_text(files, made.path() / kIndexName, index.dump(2) + "\n");
    write_text(files, made.path() / kConfigName, with_ends(config, options.ends, kConfigName));
    Path const& companions = options.companions.empty() ? options.origin : options.companions;
    if (!companions.empty()) copy_companions(files, companions, made.path());
    if (Path const path = made.path() / kGenerationConfigName; !options.ends.empty() && files.exists(path)) {
        try {
            files.replace_text(path, with_ends(files.read_text(path, kMaxConfigBytes), options.ends, path.filename()));
        } catch (Error const& error) {
            if (error.category() != Category::config) throw;
            log::warn("the export keeps its eos_token_id: {}", error.what());
        }
    }
    // transformers prefers this file to what the tokenizer's configuration says.
    if (!options.chat_template.empty()) write_text(files, made.path() / "chat_template.jinja", options.chat_template);
    made.commit(made.path());
}

void export_adapters(FileSystem& files, Checkpoint const& checkpoint, ExportOptions const& options,
                     Path const& output) {
    if (options.model.key_conv > 0)
        fail(Category::config,
             "no architecture of Hugging Face has attention.key_conv ({}): adapters of such a model cannot be exported",
             options.model.key_conv);
    std::vector<ParamSpec> const specs = peft_params(options.model);
    NewFolder made(files, output);
    made.need(total_elements(specs) * size_of(options.type) + kSpareBytes);
    size_t const prefix = peft_name("").size();
    ReadTensors const read = [&](std::vector<StoredTensor> parts) {
        for (StoredTensor& part : parts) part.name.erase(0, prefix);
        checkpoint.read(parts);
    };
    export_file(files, read, made.path() / kAdapterWeightsName, options.type, specs, [](int64_t) {});
    write_text(files, made.path() / kAdapterConfigName,
               write_adapter_config(options.model.lora, options.base.string()));
    made.commit(made.path());
}

}  // namespace perigee
