// A kernel that only takes time.
#pragma once

#include <driver_types.h>

namespace perigee::testing {

/// One thread on the stream for so long.
void queue_spin(cudaStream_t stream, double seconds);

}  // namespace perigee::testing
