// How much memory of a device is taken, for reports.
#pragma once

#include <cstdint>

#include "device/device.h"

namespace perigee {

/// In bytes. Of a GPU all that is taken, by this process or another, and the most of it whenever this was asked; on the
/// CPU what this process holds, and the most that it ever held.
struct MemoryInUse {
    int64_t used = 0;
    int64_t peak = 0;
};
MemoryInUse memory_in_use(Device const& device, MemoryInUse const& before = {});

}  // namespace perigee
