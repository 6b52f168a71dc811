// A file that grows by lines while a run goes on. What a full or failing disk does not take waits in memory, at most
// kMostWaitingBytes of it, and is written as soon as the disk takes it again. Thread-safe. It does not log: log.txt is
// such a file.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "io/file_system.h"

namespace perigee {

class LineFile {
  public:
    static constexpr size_t kMostWaitingBytes = size_t{64} << 20;

    /// Lines come after what the file holds already. Touches nothing before the first line.
    LineFile(FileSystem& files, Path path) : files_(&files), path_(std::move(path)) {}

    /// Adds a line and tries to write all that wait. Lines beyond kMostWaitingBytes are lost.
    void append(std::string const& line) { append_bytes(line + '\n'); }
    /// The same for a record that ends otherwise; it counts as a line.
    void append_bytes(std::string const& bytes);
    /// Tries again, and waits until the device has what was written: some file systems report a full disk only then.
    /// Returns whether every line ever added is in the file.
    bool flush();
    /// The lines that wait, for whoever adds them again; they no longer count as missing.
    std::string take_waiting();
    /// Somebody has cut the file after a whole line, synced it, or removed it: lines come after what it holds now.
    void was_cut();
    /// A sentence for the log, once when lines begin to wait and once when they were written; otherwise empty.
    std::string news();
    int64_t missing() const;  ///< lines that wait or were lost

  private:
    void write();

    FileSystem* files_;
    Path path_;
    mutable std::mutex mutex_;
    std::unique_ptr<WritableFile> file_;
    int64_t end_ = 0;  ///< of the whole lines in the file; what a failed write left behind them is written over
    std::string waiting_, news_;
    int64_t lines_ = 0;     ///< in waiting_
    int64_t unsynced_ = 0;  ///< lines that were written since the last sync
    int64_t delayed_ = 0;   ///< of them, those that a write has failed to write
    int64_t lost_ = 0;
    bool failing_ = false;
};

}  // namespace perigee
