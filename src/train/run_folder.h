// The folder of a run: config.yaml, metrics.jsonl, log.txt, checkpoints/, held by one job at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "io/file_system.h"
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

    void write_config(std::string const& yaml);
    /// Copies every log line into log.txt from now on.
    void mirror_log();
    /// Drops what a run resumed at `step` will do again: all later steps, and the evaluation of this one.
    void rewind_metrics(int64_t step);
    /// Appends one JSON object as a line. A failing disk is reported once and does not stop the run.
    void append_metrics(std::string const& json_object);

  private:
    struct Appender;
    FileSystem* files_;
    Path path_;
    std::unique_ptr<FileLock> lock_;
    std::unique_ptr<Appender> metrics_;
    std::unique_ptr<Appender> log_;
};

/// Where a run keeps its checkpoints.
Path checkpoint_root(Path const& output_dir);

/// The evaluation with the lowest loss, by the run's metrics, of those whose checkpoint exists; of equal ones the
/// earliest. The metrics are the only record of it, so it survives whatever a run survives.
std::optional<EvalReport> best_evaluation(FileSystem& files, Path const& output_dir);

}  // namespace perigee
