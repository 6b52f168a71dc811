// Finding and proving a checkpoint.
#include <algorithm>

#include "base/log.h"
#include "checkpoint/agree.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "io/tensor_file.h"

namespace perigee {

namespace {

void verify_file(FileSystem& files, Path const& folder, Manifest::File const& file) {
    Path const path = folder / file.name;
    if (!files.exists(path)) fail(Category::checkpoint, "{} is missing", path.string());
    if (int64_t const bytes = files.file_size(path); bytes != file.bytes) {
        fail(Category::checkpoint, "{} has {} bytes; the manifest says {}", path.string(), bytes, file.bytes);
    }
    if (std::string const hash = sha256_of_file(files, path); hash != file.sha256) {
        fail(Category::checkpoint, "{} is damaged: its SHA-256 is {}; the manifest says {}", path.string(), hash,
             file.sha256);
    }
}

std::string read_manifest(FileSystem& files, Path const& folder) {
    Path const path = folder / kManifestName;
    if (!files.exists(path)) {
        fail(Category::checkpoint, "{} is not a checkpoint: it has no {}", folder.string(), kManifestName);
    }
    return files.read_text(path, kMaxManifestBytes);
}

/// Newest first; of one step, the one that a save was replacing when it was cut short comes second.
std::vector<std::string> candidates(FileSystem& files, Path const& root) {
    if (!files.exists(root)) return {};
    auto folders = step_folders(files, root);
    auto const replaced = step_folders(files, root, kReplacedSuffix);
    folders.insert(folders.end(), replaced.begin(), replaced.end());
    std::stable_sort(folders.begin(), folders.end(), [](auto const& a, auto const& b) { return a.step > b.step; });
    std::vector<std::string> names;
    for (StepFolder const& folder : folders) names.push_back(folder.name);
    return names;
}

}  // namespace

Checkpoint::Checkpoint(FileSystem& files, Path folder, std::shared_ptr<Manifest const> manifest)
    : files_(&files), folder_(std::move(folder)), manifest_(std::move(manifest)) {
    for (auto const& [name, tensor] : manifest_->tensors) tensors_[name] = tensor.shape;
}

RunState const& Checkpoint::state() const { return manifest_->state; }

Checkpoint Checkpoint::open(FileSystem& files, Path const& folder) { return open(files, *make_single_comm(), folder); }

Checkpoint Checkpoint::open(FileSystem& files, Comm& world, Path const& folder) {
    std::string text;
    agree(world, [&] {
        if (world.rank() == 0) text = read_manifest(files, folder);
    });
    text = world.broadcast_text(std::move(text), 0);
    std::string const where = (folder / kManifestName).string();
    auto const manifest = std::make_shared<Manifest const>(Manifest::parse(text, where));
    manifest->check_pieces(where);
    agree(world, [&] {
        for (auto i = static_cast<size_t>(world.rank()); i < manifest->files.size();
             i += static_cast<size_t>(world.size())) {
            verify_file(files, folder, manifest->files[i]);
        }
    });
    return {files, folder, manifest};
}

std::optional<Checkpoint> find_latest(FileSystem& files, Comm& world, Path const& root) {
    std::vector<std::string> names;
    agree(world, [&] {
        if (world.rank() == 0) names = candidates(files, root);
    });
    auto const count = world.max(std::ssize(names));
    names.resize(static_cast<size_t>(count));
    std::string newest_error;
    for (std::string& name : names) {
        name = world.broadcast_text(name, 0);
        try {
            return Checkpoint::open(files, world, root / name);
        } catch (Error const& e) {
            if (e.category() != Category::checkpoint) throw;
            if (world.rank() == 0) log::warn("checkpoint {} is skipped: {}", name, e.what());
            if (newest_error.empty()) newest_error = e.what();
        }
    }
    if (count > 0) {
        fail(Category::checkpoint, "none of the {} checkpoints in {} is whole; the newest: {}", count, root.string(),
             newest_error);
    }
    return std::nullopt;
}

}  // namespace perigee
