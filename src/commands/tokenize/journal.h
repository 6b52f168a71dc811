// Where a run of `tokenize` that was killed can go on: PREFIX.resume.json beside the unfinished files.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "data/indexed_dataset.h"
#include "io/file_system.h"

namespace perigee {

/// Names the contents of files cheaply: sizes, first and last bytes.
std::string fingerprint_of(FileSystem& files, std::vector<Path> const& paths);
/// The same of what makes a tokenizer, all of it.
std::string tokenizer_fingerprint(FileSystem& files, std::string const& tokenizer);

class Journal {
  public:
    /// `inputs` tells everything that the result depends on: a state of other inputs is not used. Throws LockedError
    /// where another process writes to this prefix.
    Journal(FileSystem& files, Path const& prefix, std::string const& inputs, double seconds);
    ~Journal();
    Journal(Journal const&) = delete;
    Journal& operator=(Journal const&) = delete;

    struct State {
        std::string place;  ///< JSON, as tick() was given it
        WriterState writer;
    };
    /// Of an earlier run, if it was of the same inputs.
    std::optional<State> const& found() const { return found_; }
    WriterState const* writer() const { return found_ ? &found_->writer : nullptr; }

    /// Every so many seconds: makes the writer's files durable and writes down the place that follows its last
    /// document.
    template <class Place>
    void tick(IndexedDatasetWriter& writer, Place const& place) {
        if (std::chrono::steady_clock::now() >= next_) save(writer.save(), place());
    }
    /// The files are whole, and about to take their names: nothing is left to go on with.
    void finish();

  private:
    void save(WriterState const& writer, std::string const& place);

    FileSystem& files_;
    Path path_, lock_path_;
    std::string inputs_;
    std::chrono::duration<double> seconds_;
    std::unique_ptr<FileLock> lock_;
    std::optional<State> found_;
    std::chrono::steady_clock::time_point next_;
};

}  // namespace perigee
