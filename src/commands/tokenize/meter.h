// How far `tokenize` is: a bar on a terminal, a line every ten seconds elsewhere.
#pragma once

#include <chrono>
#include <vector>

#include "io/file_system.h"
#include "train/progress.h"

namespace perigee {

class Meter {
  public:
    /// `seconds` between lines.
    Meter(FileSystem& files, std::vector<Path> const& paths, double seconds);
    double seconds() const;
    /// Bytes read of all files, and tokens written by this run; what an earlier one read is `skipped`.
    void show(int64_t bytes, int64_t skipped, int64_t tokens);
    void clear() { bar_.clear(); }

  private:
    Progress bar_{true};
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
    double between_, next_;
    int64_t all_bytes_ = 0;
};

}  // namespace perigee
