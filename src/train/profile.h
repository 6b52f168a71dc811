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

    /// Around step number `step`. The file is written after the last step that is to be traced; where it cannot be, the
    /// log says so and training goes on.
    void before_step(int64_t step);
    void after_step();
    /// No step follows: writes the file of those that were traced, and says where none was.
    void finish();

  private:
    bool traces() const { return taken_ >= options_.first && taken_ < options_.first + options_.steps; }
    void write();

    ProfileOptions options_;
    Device* device_;
    FileSystem* files_;
    Path path_;
    int rank_;
    int64_t taken_ = 0;  ///< steps of this job
    size_t span_ = 0;    ///< of the step that goes on
};

}  // namespace perigee
