// The folder of a run: config.yaml, run.json, metrics.jsonl, samples.jsonl, blocks.jsonl, log.txt, tensorboard/,
// checkpoints/, held by one job at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "io/file_system.h"
#include "train/event_file.h"
#include "train/line_file.h"
#include "train/metrics.h"

namespace perigee {

class RunFolder {
  public:
    /// Creates what is missing, takes the lock and removes what an earlier job's failing ranks left. Throws
    /// Category::config where the folder cannot be written or another living job holds it. Only rank 0 of a job makes
    /// one.
    RunFolder(FileSystem& files, Path path);
    ~RunFolder();
    RunFolder(RunFolder const&) = delete;
    RunFolder& operator=(RunFolder const&) = delete;

    /// The id under which the folder's run was begun; empty for a new one.
    std::string run_id() const;
    /// Writes config.yaml, whose first line is a comment with the run's id.
    void write_config(std::string const& yaml, std::string const& run_id);
    /// Writes run.json, what the job is: train/run_record.h.
    void write_record(std::string const& json);
    /// Copies every log line into log.txt from now on.
    void mirror_log();
    /// Who holds the folder, as its lock says.
    std::string const& holder() const { return holder_; }
    /// Drops what a run resumed at `step` will do again, of metrics, samples and blocks: all later steps and, where it
    /// `evaluates` first, the evaluation of this one. Returns the metrics of this step that stay.
    std::vector<std::string> rewind_metrics(int64_t step, bool evaluates);
    /// Metrics go to TensorBoard's event files in `tensorboard` as well, beginning with `lines`, which are all that
    /// there is of this step.
    void write_events(int64_t step, std::vector<std::string> const& lines);
    /// Appends one JSON object as a line. A failing disk does not stop the run: lines wait in memory, as LineFile says.
    void append_metrics(std::string const& json_object);
    /// The same to samples.jsonl and blocks.jsonl, lines with a step.
    void append_sample(std::string const& json_object);
    void append_blocks(std::string const& json_object);
    /// Tries to write the lines that wait; returns how many of metrics, samples and blocks are lost.
    int64_t finish_metrics();

  private:
    void append(std::unique_ptr<LineFile>& file, char const* name, std::string const& json_object);
    /// Drops the lines from the first one on that `is_done_again`, whether they are written or wait.
    template <class Again>
    void rewind(std::unique_ptr<LineFile>& file, char const* name, Again&& is_done_again);
    void tell_news();

    FileSystem* files_;
    Path path_;
    std::string holder_;
    std::unique_ptr<FileLock> lock_;
    std::unique_ptr<LineFile> metrics_;
    std::unique_ptr<LineFile> samples_;
    std::unique_ptr<LineFile> blocks_;
    std::unique_ptr<LineFile> log_;
    std::unique_ptr<EventFile> events_;
};

/// Random: tells the checkpoints of one run from those of another.
std::string new_run_id();

/// Where a run keeps its checkpoints.
Path checkpoint_root(Path const& output_dir);

/// Whether the checkpoint is the one of its step in the run's folder, however its path is written.
bool is_own(Checkpoint const& found, Path const& output_dir);

/// Throws Category::config unless output_dir is the folder that `holder` has locked, waiting so long for a network file
/// system to show it.
void check_shared(FileSystem& files, Path const& output_dir, std::string const& holder,
                  std::chrono::seconds patience = std::chrono::seconds(30));

/// The evaluation with the lowest loss, by the run's metrics, of those on this held_out_data() whose checkpoint exists;
/// of equal ones the earliest. Evaluations of older programs do not say on which data they were, and count. A
/// checkpoint itself records only what was evaluated before it, and those of older programs nothing.
std::optional<EvalReport> best_evaluation(FileSystem& files, Path const& output_dir, std::string const& held_out);
/// The best checkpoint there is, by what the newest one records and by the metrics, which also have the evaluations
/// after it. Of several held-out data the last counts.
std::optional<RunState::Best> best_checkpoint(FileSystem& files, Path const& output_dir);

}  // namespace perigee
