#include "checkpoint/folders.h"

#include <algorithm>
#include <charconv>

#include "base/log.h"

namespace perigee {

namespace {

constexpr std::string_view kPrefix = "step_";
constexpr std::string_view kTrash = ".trash-";

template <class Action>
void or_warn(Action&& action) {
    try {
        action();
    } catch (Error const& e) {
        log::warn("{}", e.what());
    }
}

}  // namespace

std::string step_name(int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

std::vector<StepFolder> step_folders(FileSystem& files, Path const& root, std::string const& suffix) {
    std::vector<StepFolder> found;
    for (std::string const& name : files.list(root)) {
        if (!name.starts_with(kPrefix)) continue;
        int64_t step = 0;
        std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
        if (name == step_name(step) + suffix) found.push_back({step, name});
    }
    std::sort(found.begin(), found.end(), [](auto const& a, auto const& b) { return a.step > b.step; });
    return found;
}

void make_durable_folder(FileSystem& files, Path const& path) {
    if (path.empty() || files.exists(path)) return;
    Path const parent = path.has_parent_path() ? path.parent_path() : Path(".");
    make_durable_folder(files, parent);
    files.make_directories(path);
    files.sync_directory(parent);
}

void discard(FileSystem& files, Path const& root, std::string const& name) {
    Path const trash = root / fmt::format("{}{}", kTrash, name);
    files.remove_all(trash);
    files.rename(root / name, trash);
    files.sync_directory(root);
    files.remove_all(trash);
}

std::string set_aside(FileSystem& files, Path const& root, std::string const& name, char const* suffix) {
    std::vector<std::string> const taken = files.list(root);
    std::string to = name + suffix;
    for (int i = 2; std::ranges::count(taken, to) > 0; ++i) to = fmt::format("{}{}.{}", name, suffix, i);
    files.rename(root / name, root / to);
    files.sync_directory(root);
    return to;
}

void fail_removed(Path const& folder) {
    fail(Category::checkpoint,
         "{} was removed or renamed while it was read, as a run that goes on does with older checkpoints. Try again, "
         "or let "
         "the run keep more of them (checkpoint.keep_last)",
         folder.string());
}

std::vector<std::string> set_aside_before(FileSystem& files, Path const& root) {
    std::vector<std::string> names;
    for (std::string const& name : files.list(root))
        if (name.starts_with(kPrefix) && name.find(kDamagedSuffix) != name.npos) names.push_back(name);
    return names;
}

void clean_up(FileSystem& files, Path const& root) {
    for (StepFolder const& replaced : step_folders(files, root, kReplacedSuffix)) {
        Path const path = root / step_name(replaced.step);
        if (files.exists(path)) {
            or_warn([&] { discard(files, root, replaced.name); });
        } else {
            files.rename(root / replaced.name, path);
            files.sync_directory(root);
        }
    }
    for (StepFolder const& unfinished : step_folders(files, root, kTemporarySuffix)) {
        or_warn([&] { files.remove_all(root / unfinished.name); });
    }
    for (std::string const& name : files.list(root)) {
        if (name.starts_with(kTrash)) or_warn([&] { files.remove_all(root / name); });
    }
}

void prune(FileSystem& files, Path const& root, int64_t step, Retention keep) {
    if (keep.last <= 0) return;
    auto folders = step_folders(files, root);
    std::erase_if(folders, [&](StepFolder const& folder) { return folder.step > step; });
    for (auto i = static_cast<size_t>(keep.last); i < folders.size(); ++i)
        if (folders[i].step != keep.best && std::ranges::count(keep.steps, folders[i].step) == 0 &&
            (keep.every <= 0 || folders[i].step % keep.every != 0))
            discard(files, root, folders[i].name);
}

}  // namespace perigee
