// Looks into runs, checkpoints and Hugging Face folders: `perigee checkpoint inspect FOLDER`, `verify FOLDER`,
// `diff A B`.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>

#include "base/bf16.h"
#include "base/printable.h"
#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "commands/command.h"
#include "hf/config.h"
#include "hf/weights.h"
#include "model/llama.h"
#include "train/progress.h"
#include "train/run_folder.h"

namespace perigee {
namespace {

constexpr int64_t kChunkElements = int64_t{1} << 24;

enum class FolderKind { run, checkpoint, hugging_face };

/// Throws Category::config where it is none of them.
FolderKind kind_of(FileSystem& files, Path const& folder) {
    auto const has = [&](char const* name) { return files.exists(folder / name); };
    if (has(kManifestName) || has("rank_0000.h5")) return FolderKind::checkpoint;  // one may have lost its manifest
    if (has("run.json") || files.exists(checkpoint_root(folder))) return FolderKind::run;
    if (has(kConfigName) || has(kWeightsName) || has(kIndexName)) return FolderKind::hugging_face;
    std::string hint;
    if (!files.exists(folder))
        hint = ": it does not exist";
    else if (files.is_directory(folder) && !step_folders(files, folder).empty())
        hint = ": name the run that it belongs to, or one of the checkpoints in it";
    fail(Category::config, "{} is neither a run, a checkpoint nor a Hugging Face folder{}", folder.string(), hint);
}

/// The folder itself, or the newest whole checkpoint of a run.
Path resolve(FileSystem& files, Path const& folder) {
    if (kind_of(files, folder) != FolderKind::run) return folder;
    auto const found = find_latest(files, *make_single_host_comm(), checkpoint_root(folder));
    if (!found) fail(Category::checkpoint, "there is no checkpoint in {}", folder.string());
    return found->folder();
}

Manifest read_manifest(FileSystem& files, Path const& folder) {
    Path const path = folder / kManifestName;
    return Manifest::parse(files.read_text(path, kMaxManifestBytes), path.string());
}

/// Named tensors to compare, whatever holds them.
class Tensors {
  public:
    Tensors(FileSystem& files, Path const& folder) {
        if (kind_of(files, folder) == FolderKind::checkpoint) {
            manifest_ = read_manifest(files, folder);
            checkpoint_ = Checkpoint::open(files, folder);
            shapes_ = checkpoint_->tensors();
        } else {
            weights_.emplace(files, folder);
            shapes_ = weights_->shapes();
        }
    }
    std::map<std::string, Shape> const& shapes() const { return shapes_; }

    /// Elements [begin, begin + values.size()).
    void read(std::string const& name, int64_t begin, std::span<double> values) const {
        Shard shard = whole_shard(shapes_.at(name));
        shard.flat_begin = begin;
        shard.flat_count = std::ssize(values);
        if (weights_) return read_as<float>(values, [&](auto& raw) { weights_->read(name, shard, raw); });
        auto const from_checkpoint = [&](auto& raw) {
            checkpoint_->read({{name, shard, TensorView(raw.data(), Shape{shard.flat_count})}});
        };
        switch (DType const type = manifest_.tensors.at(name).dtype) {
            case DType::f32:
                return read_as<float>(values, from_checkpoint);
            case DType::f64:
                return read_as<double>(values, from_checkpoint);
            case DType::bf16:
                return read_as<bf16>(values, from_checkpoint);
            default:
                fail(Category::checkpoint, "tensor `{}` is {}; f32, f64 and bf16 can be compared", name,
                     to_string(type));
        }
    }

  private:
    template <class Real, class Read>
    static void read_as(std::span<double> values, Read&& read) {
        std::vector<Real> raw(values.size());
        read(raw);
        std::ranges::transform(raw, values.begin(), [](Real x) -> double {
            if constexpr (std::is_same_v<Real, bf16>)
                return to_float(x);
            else
                return x;
        });
    }

    Manifest manifest_;
    std::optional<Checkpoint> checkpoint_;
    std::optional<HfWeights> weights_;
    std::map<std::string, Shape> shapes_;
};

struct Difference {
    double largest = 0, squares = 0, a_squares = 0, b_squares = 0, product = 0;

    void add(double a, double b) {
        double const d = std::abs(a - b);
        largest = d > largest || std::isnan(d) ? d : largest;
        squares += d * d;
        a_squares += a * a;
        b_squares += b * b;
        product += a * b;
    }
    double relative() const { return squares == 0 ? 0 : std::sqrt(squares / a_squares); }
    double cosine() const {
        if (a_squares == 0 && b_squares == 0) return 1;
        return product / std::sqrt(a_squares * b_squares);
    }
};

Difference compare(Tensors const& a, Tensors const& b, std::string const& name) {
    int64_t const size = a.shapes().at(name).size();
    std::vector<double> x(static_cast<size_t>(std::min(size, kChunkElements))), y(x.size());
    Difference difference;
    for (int64_t begin = 0; begin < size; begin += kChunkElements) {
        auto const count = static_cast<size_t>(std::min(kChunkElements, size - begin));
        a.read(name, begin, std::span(x).first(count));
        b.read(name, begin, std::span(y).first(count));
        for (size_t i = 0; i < count; ++i) difference.add(x[i], y[i]);
    }
    return difference;
}

/// 0: the same tensors with the same values; 1: not so.
int diff(FileSystem& files, Path const& first, Path const& second) {
    Tensors const a(files, resolve(files, first)), b(files, resolve(files, second));
    int64_t same = 0, differ = 0;
    print_printable("{:>12} {:>12} {:>14}  tensor\n", "max", "relative", "cosine");
    for (auto const& [name, shape] : a.shapes()) {
        auto const other = b.shapes().find(name);
        if (other == b.shapes().end() || other->second != shape) {
            print_printable("{:>40}  {} {}\n",
                            other == b.shapes().end() ? "only in the first" : "in the second as " + other->second.str(),
                            name, shape.str());
            ++differ;
            continue;
        }
        Difference const d = compare(a, b, name);
        print_printable("{:>12.4g} {:>12.4g} {:>14.10f}  {} {}\n", d.largest, d.relative(), d.cosine(), name,
                        shape.str());
        ++(d.largest == 0 ? same : differ);
    }
    for (auto const& [name, shape] : b.shapes()) {
        if (a.shapes().contains(name)) continue;
        print_printable("{:>40}  {} {}\n", "only in the second", name, shape.str());
        ++differ;
    }
    print_printable("{} tensors are equal, {} are not\n", same, differ);
    return differ == 0 ? 0 : 1;
}

void inspect_checkpoint(FileSystem& files, Path const& folder) {
    Manifest const manifest = read_manifest(files, folder);
    RunState const& state = manifest.state;
    print_printable("{}: step {}, {} samples, {} updates, seed {}\n", folder.string(), state.step,
                    state.consumed_samples, state.applied_updates, state.seed);
    for (auto const& [key, value] : state.info) print_printable("  {}: {}\n", key, value);
    for (Manifest::File const& file : manifest.files)
        print_printable("  {}  {}  sha256 {}\n", file.name, format_bytes(file.bytes), file.sha256);
    int64_t elements = 0;
    for (auto const& [name, tensor] : manifest.tensors) {
        elements += tensor.shape.size();
        print_printable("{:<5} {:<18} {}\n", to_string(tensor.dtype), tensor.shape.str(), name);
        for (Manifest::Piece const& piece : tensor.pieces)
            if (tensor.pieces.size() > 1)
                print_printable("        {} from {} in {}: {} elements from {}\n", piece.shard.extent.str(),
                                piece.shard.begin.str(), manifest.files[piece.file].name, piece.shard.flat_count,
                                piece.shard.flat_begin);
    }
    print_printable("{} tensors, {} elements in {} files\n", manifest.tensors.size(), format_count(elements),
                    manifest.files.size());
}

void inspect_hugging_face(FileSystem& files, Path const& folder) {
    HfConfig const config = read_hf_config(files, folder);
    HfWeights const weights(files, folder);
    weights.check(llama_params(config.model));
    int64_t elements = 0;
    for (auto const& [name, shape] : weights.shapes()) {
        elements += shape.size();
        print_printable("{:<5} {:<18} {}\n", weights.dtype(name), shape.str(), name);
    }
    print_printable("{} tensors, {} elements{}\n", weights.shapes().size(), format_count(elements),
                    config.attention ? "; with MoBA's settings" : "");
}

void print_whole(Checkpoint const& checkpoint) {
    print_printable("{}: every file is what the manifest says; {} tensors, each stored once\n",
                    checkpoint.folder().string(), checkpoint.tensors().size());
}

/// Every checkpoint of a run, newest first. Throws Category::checkpoint where one is not whole, or none is there.
void verify_run(FileSystem& files, Path const& run) {
    Path const root = checkpoint_root(run);
    std::vector<StepFolder> folders;
    std::vector<std::string> aside;
    if (files.exists(root)) {
        folders = step_folders(files, root);
        auto const replaced = step_folders(files, root, kReplacedSuffix);
        folders.insert(folders.end(), replaced.begin(), replaced.end());
        std::ranges::stable_sort(folders, std::greater{}, &StepFolder::step);
        aside = set_aside_before(files, root);
    }
    size_t seen = 0, bad = 0;
    auto const alone = make_single_host_comm();
    for (StepFolder const& folder : folders) {
        Path const path = root / folder.name;
        try {
            print_whole(Checkpoint::open(files, *alone, path, {.step = folder.step, .run_id = {}}));
        } catch (Error const& e) {
            if (std::ranges::count(files.list(root), folder.name) == 0) continue;  // removed meanwhile, by its run
            bool const damaged = dynamic_cast<DamagedError const*>(&e) != nullptr;
            print_printable("{}: {}: {}\n", path.string(), damaged ? "damaged" : "cannot be verified", e.what());
            ++bad;
        }
        ++seen;
    }
    for (std::string const& name : aside) print_printable("{}: set aside as damaged\n", (root / name).string());
    if (seen == 0 && !folders.empty()) fail_removed(root / folders.front().name);
    if (seen == 0) fail(Category::checkpoint, "there is no checkpoint in {}", run.string());
    if (bad > 0)
        fail(Category::checkpoint, "not every checkpoint in {} is whole: {} of {} are", root.string(), seen - bad,
             seen);
}

void verify(FileSystem& files, Path const& folder) {
    switch (kind_of(files, folder)) {
        case FolderKind::run:
            return verify_run(files, folder);
        case FolderKind::checkpoint:
            return print_whole(Checkpoint::open(files, folder));
        case FolderKind::hugging_face:
            fail(Category::config,
                 "{} is a Hugging Face folder: it has no hashes to verify. `perigee checkpoint inspect` checks its "
                 "tensors' names and shapes",
                 folder.string());
    }
}

void inspect(FileSystem& files, Path const& named) {
    Path const folder = resolve(files, named);
    if (kind_of(files, folder) == FolderKind::checkpoint)
        inspect_checkpoint(files, folder);
    else
        inspect_hugging_face(files, folder);
}

int run(std::string const& command, std::vector<Path> const& folders, FileSystem& files) {
    if (command == "diff") return diff(files, folders[0], folders[1]);
    if (command == "verify")
        verify(files, folders[0]);
    else
        inspect(files, folders[0]);
    return 0;
}

}  // namespace
}  // namespace perigee

namespace perigee {

Action declare_checkpoint(CLI::App& app) {
    app.require_subcommand(1);
    struct Typed {
        std::string command;
        std::vector<Path> folders;
    };
    auto const typed = std::make_shared<Typed>();
    auto const add = [&](char const* name, char const* help, int arguments) {
        CLI::App* const sub = app.add_subcommand(name, help)->group("Subcommands");
        sub->add_option("folder", typed->folders)->required()->expected(arguments);
        sub->callback([typed, name] { typed->command = name; });
    };
    add("inspect", "List tensors, shapes, layout and hashes; reads no values", 1);
    add("verify", "Check the files of a checkpoint, or of a run's checkpoints, by their hashes", 1);
    add("diff", "Differences by tensor: largest, relative to the first, cosine; code 1 if any", 2);
    return [typed](FileSystem& files) { return run(typed->command, typed->folders, files); };
}

}  // namespace perigee
