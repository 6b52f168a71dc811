// The names of checkpoint folders inside `root`. step_00000100: a whole checkpoint. step_00000100.tmp: being written.
// step_00000100.old: a whole one that a new save of the same step is about to replace. .trash-...: being removed.
// step_00000100.damaged, step_00000100.damaged.2: set aside; step_00000100.rolled_back: whole, of a run that the guard
// took back to an earlier step. Only people remove these.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "io/file_system.h"

namespace perigee {

inline constexpr char kTemporarySuffix[] = ".tmp";
inline constexpr char kReplacedSuffix[] = ".old";
inline constexpr char kDamagedSuffix[] = ".damaged";
inline constexpr char kRolledBackSuffix[] = ".rolled_back";

std::string step_name(int64_t step);

struct StepFolder {
    int64_t step;
    std::string name;
    bool operator==(StepFolder const&) const = default;
};
/// The folders named step_<digits> + `suffix`, newest first.
std::vector<StepFolder> step_folders(FileSystem& files, Path const& root, std::string const& suffix = "");

/// Creates the folder and what leads to it, so that they outlast a power loss.
void make_durable_folder(FileSystem& files, Path const& path);
/// Removes a folder of `root` in a way that never leaves half of it under its name.
void discard(FileSystem& files, Path const& root, std::string const& name);
/// Renames `name` in `root` to the same with `suffix`, and .2 and so on after it if that name exists; returns the new
/// name.
std::string set_aside(FileSystem& files, Path const& root, std::string const& name,
                      char const* suffix = kDamagedSuffix);
/// Throws Category::checkpoint: the folder disappeared under a reader.
[[noreturn]] void fail_removed(Path const& folder);
/// What was set aside in `root` as damaged.
std::vector<std::string> set_aside_before(FileSystem& files, Path const& root);
/// Removes what crashes left in `root`, or gives a folder its name back. What cannot be removed is warned about.
void clean_up(FileSystem& files, Path const& root);
/// Removes the checkpoints up to `step` that `keep` does not name; `step` itself always stays.
void prune(FileSystem& files, Path const& root, int64_t step, Retention keep);

}  // namespace perigee
