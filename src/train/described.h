// What a checkpoint says of the run that wrote it, and what it means for a run that goes on from it: which options
// differ, which of them define the model (Field::defines_model), whether the data is the same.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "comm/host_comm.h"
#include "train/options.h"

namespace perigee {

/// Every option as JSON, for RunState::options.
std::string options_text(RunOptions const& options);
/// The options a checkpoint was written with; keys this program does not know are left out. Nothing where it does not
/// say, as those of older programs, or where this program cannot read it.
std::optional<RunOptions> stored_options(RunState const& state);

/// The same, with attention as it was at the checkpoint's step and without a schedule.
std::optional<RunOptions> options_at_step(RunState const& state);

/// options_at_step() of the checkpoint in `folder`, whose tensors are neither read nor verified; nothing where there is
/// none.
std::optional<RunOptions> options_in(FileSystem& files, Path const& folder);

/// What tells held-out losses that compare from others: a hash of the held-out data, by `contents` (as fingerprints()
/// has them), of how samples are made of it, and of how many are read.
std::string held_out_data(RunOptions const& options, std::map<std::string, std::string> const& contents);

/// An option that differs; values as JSON.
struct OptionChange {
    std::string key, before, now;
    bool defines_model = false;
};
/// In the order of the reference page. Two ways to write the same model are no difference.
std::vector<OptionChange> changes(RunOptions const& before, RunOptions const& now);
/// Those that define the model.
std::vector<OptionChange> model_changes(RunOptions const& before, RunOptions const& now);
/// "  key: before -> now", one a line.
std::string to_string(std::vector<OptionChange> const& changes);

/// Throws Category::config where a rank has other options than rank 0, but for `threads`: hosts may hold other copies
/// of a file. Collective.
void check_alike(RunOptions options, HostComm& world);

/// Gives `to` the options that define the model in `from`, and the tokenizer, where `to` has the default one.
void take_model(RunOptions& to, RunOptions const& from);

/// Sentences for the log about what a resumed run does otherwise than the one that wrote its checkpoint: one block of
/// options and data sets, and a learning rate that rises again. Throws Category::config where the model is another and
/// checkpoint.allow_model_change does not allow it. `data` of this run; empty: not compared.
std::vector<std::string> compare(Checkpoint const& then, RunOptions const& now,
                                 std::map<std::string, std::string> const& data);

}  // namespace perigee
