// A trace of some training steps: every operation and collective of a rank, in a file that Chrome's viewer and Perfetto
// open. Trace Event Format: complete events ("ph": "X"), times in microseconds.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "io/file_system.h"
#include "train/options.h"

namespace perigee {

class Profile {
  public:
    /// The file is `folder`/trace_rank_R.json.
    Profile(ProfileOptions const& options, Device& device, FileSystem& files, Path const& folder, int rank);

    /// Around step number `step`, the `nth` of this job, from 0 on. The file is written after the last traced step;
    /// where it cannot be, the log says so and training goes on.
    void before_step(int64_t nth, int64_t step);
    void after_step(int64_t nth);

  private:
    bool traces(int64_t nth) const { return nth >= options_.first && nth < options_.first + options_.steps; }

    ProfileOptions options_;
    Device* device_;
    FileSystem* files_;
    Path path_;
    int rank_;
    size_t span_ = 0;  ///< of the step that goes on
};

}  // namespace perigee
