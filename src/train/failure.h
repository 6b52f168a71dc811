// What a failing rank leaves in the run folder, for people and schedulers that come later: failure_rank_R.json.
#pragma once

#include <string>

#include "base/error.h"
#include "comm/host_board.h"
#include "io/file_system.h"

namespace perigee {

/// Parts of a run, each with a time limit of its own.
enum class Section : int32_t { setup, first_step, step, save, eval };
char const* to_string(Section section) noexcept;

std::string host_name();

/// Writes `folder`/failure_rank_R.json for the rank that `status` describes: category, message, section, step, last
/// collective, host, process and time. Never throws: what goes wrong here must not hide the failure itself.
void write_failure(FileSystem& files, Path const& folder, RankStatus const& status, Category category,
                   std::string const& message) noexcept;

/// Removes what write_failure() of an earlier job left. What cannot be removed stays.
void remove_failures(FileSystem& files, Path const& folder) noexcept;

}  // namespace perigee
