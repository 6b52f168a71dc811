// Finding and proving a checkpoint.
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "base/log.h"
#include "checkpoint/agree.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "io/tensor_file.h"

namespace perigee {

namespace {

/// Tells what a read found apart from a read that failed: what is missing, of another kind or too short is damage.
template <class Action>
auto reading(Action&& action) {
    try {
        return action();
    } catch (DamagedError const&) {
        throw;
    } catch (IoError const& e) {
        for (int const damage : {ENOENT, ENOTDIR, EISDIR, EINVAL, ELOOP, ENXIO})
            if (e.errno_value() == damage) throw DamagedError(e.what());
        throw;
    } catch (Error const& e) {
        if (e.category() == Category::data) throw DamagedError(e.what());
        throw;
    }
}

void verify_file(FileSystem& files, Path const& folder, Manifest::File const& file) {
    Path const path = folder / file.name;
    if (!files.exists(path)) fail_damaged("{} is missing", path.string());
    if (int64_t const bytes = files.file_size(path); bytes != file.bytes)
        fail_damaged("{} has {} bytes; the manifest says {}", path.string(), bytes, file.bytes);
    if (std::string const hash = sha256_of_file(files, path); hash != file.sha256)
        fail_damaged("{} is damaged: its SHA-256 is {}; the manifest says {}", path.string(), hash, file.sha256);
}

std::string read_manifest(FileSystem& files, Path const& folder) {
    Path const path = folder / kManifestName;
    if (!files.exists(folder)) fail_damaged("there is no folder {}", folder.string());
    if (!files.exists(path))
        fail_damaged(
            "{} is not a checkpoint: it has no {}{}", folder.string(), kManifestName,
            files.is_directory(folder / "checkpoints") ? "; a run's checkpoints are folders of its checkpoints/" : "");
    return files.read_text(path, kMaxManifestBytes);
}

void check_expected(RunState const& state, Checkpoint::Expected const& expected, std::string const& where) {
    if (expected.step && state.step != *expected.step)
        fail_damaged("{}: it is of step {}; the folder's name says step {}", where, state.step, *expected.step);
    if (!expected.run_id.empty() && !state.run_id.empty() && state.run_id != expected.run_id)
        fail_damaged("{}: it is of another run, {}; this folder's run is {}", where, state.run_id, expected.run_id);
}

/// Newest first; of one step, the one that a save was replacing when it was cut short comes second.
std::vector<StepFolder> candidates(FileSystem& files, Path const& root) {
    if (!files.exists(root)) return {};
    auto folders = step_folders(files, root);
    auto const replaced = step_folders(files, root, kReplacedSuffix);
    folders.insert(folders.end(), replaced.begin(), replaced.end());
    std::stable_sort(folders.begin(), folders.end(), [](auto const& a, auto const& b) { return a.step > b.step; });
    return folders;
}

/// Whether `root` has lost `name` meanwhile. Collective.
bool is_removed(FileSystem& files, HostComm& world, Path const& root, std::string const& name) {
    bool removed = false;
    agree(world, [&] {
        if (world.rank() == 0) removed = std::ranges::count(files.list(root), name) == 0;
    });
    return world.any(removed);
}

struct DamagedFolder {
    std::string name, why;
};

void set_all_aside(FileSystem& files, HostComm& world, Path const& root, std::vector<DamagedFolder> const& damaged) {
    agree(world, [&] {
        if (world.rank() != 0) return;
        for (auto const& [name, why] : damaged) {
            try {
                std::string const now = set_aside(files, root, name);
                log::warn("checkpoint {} is damaged and now lies in {}: {}", name, (root / now).string(), why);
            } catch (Error const& e) {
                fail(Category::checkpoint, "the damaged checkpoint {} cannot be set aside; move it out of {}: {}", name,
                     root.string(), e.what());
            }
        }
    });
}

/// No checkpoint is left, but damaged ones lie there: work would be lost in silence if a run began anew.
void refuse_only_damaged(FileSystem& files, HostComm& world, Path const& root) {
    agree(world, [&] {
        if (world.rank() != 0 || !files.exists(root)) return;
        auto const aside = set_aside_before(files, root);
        if (aside.empty()) return;
        fail(
            Category::checkpoint,
            "{} holds no checkpoint but damaged ones that were set aside ({}): put a whole one back, or choose another "
            "output_dir to begin anew",
            root.string(), fmt::join(aside, ", "));
    });
}

}  // namespace

Checkpoint::Checkpoint(FileSystem& files, Path folder, std::shared_ptr<Manifest const> manifest)
    : files_(&files), folder_(std::move(folder)), manifest_(std::move(manifest)) {
    for (auto const& [name, tensor] : manifest_->tensors) tensors_[name] = tensor.shape;
}

RunState const& Checkpoint::state() const { return manifest_->state; }

namespace {

/// Whether the folder's manifest has this text; waits some seconds for a network file system to show it.
bool sees(FileSystem& files, Path const& folder, std::string const& text) {
    constexpr int kAttempts = 50;
    for (int i = 0; i < kAttempts; ++i) {
        try {
            if (read_manifest(files, folder) == text) return true;
        } catch (Error const& e) {
            if (e.category() == Category::memory) throw;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
}

}  // namespace

Checkpoint Checkpoint::open(FileSystem& files, Path const& folder) {
    return open(files, *make_single_host_comm(), folder);
}

Checkpoint Checkpoint::open(FileSystem& files, HostComm& world, Path const& folder, Expected const& expected) {
    std::string text;
    agree(world, [&] {
        if (world.rank() == 0) text = reading([&] { return read_manifest(files, folder); });
    });
    text = world.broadcast_text(std::move(text), 0);
    std::string const where = (folder / kManifestName).string();
    agree(world, [&] {
        if (world.rank() > 0 && !sees(files, folder, text))
            fail(Category::checkpoint, "{} is not the file that rank 0 sees: all hosts must see the same folder",
                 where);
    });
    auto const manifest = std::make_shared<Manifest const>(Manifest::parse(text, where));
    check_expected(manifest->state, expected, where);
    manifest->check_pieces(where);
    agree(world, [&] {
        for (auto i = static_cast<size_t>(world.rank()); i < manifest->files.size();
             i += static_cast<size_t>(world.size())) {
            reading([&] { verify_file(files, folder, manifest->files[i]); });
        }
    });
    return {files, folder, manifest};
}

std::optional<Checkpoint> find_latest(FileSystem& files, HostComm& world, Path const& root, Damaged what,
                                      std::string const& run_id) {
    std::vector<StepFolder> folders;
    agree(world, [&] {
        if (world.rank() == 0) folders = candidates(files, root);
    });
    auto const count = world.max(std::ssize(folders));
    folders.resize(static_cast<size_t>(count));
    std::vector<DamagedFolder> damaged;
    for (StepFolder& folder : folders) {
        folder.name = world.broadcast_text(folder.name, 0);
        folder.step = world.max(folder.step);
        try {
            Checkpoint found = Checkpoint::open(files, world, root / folder.name, {folder.step, run_id});
            if (what == Damaged::set_aside) set_all_aside(files, world, root, damaged);
            return found;
        } catch (DamagedError const& e) {
            if (is_removed(files, world, root, folder.name)) fail_removed(root / folder.name);
            if (what == Damaged::skipped && world.rank() == 0)
                log::warn("checkpoint {} is skipped: {}", folder.name, e.what());
            damaged.push_back({folder.name, e.what()});
        }
    }
    if (count > 0)
        fail(
            Category::checkpoint,
            "none of the {} checkpoints in {} is whole, and nothing there was changed; the newest: {}\nBring one back, "
            "name one elsewhere with checkpoint.resume=FOLDER, or choose another output_dir to begin anew",
            count, root.string(), damaged.front().why);
    refuse_only_damaged(files, world, root);
    return std::nullopt;
}

}  // namespace perigee
