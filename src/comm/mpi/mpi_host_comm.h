// HostComm over MPI. mpi.h stays out of this header; MPI must be initialised (comm/launch.h).
#pragma once

#include <cstdint>
#include <memory>

#include "comm/host_comm.h"

namespace perigee {

/// MPI counts are 32-bit: longer transfers travel in pieces of this many bytes.
inline constexpr int64_t kMpiPieceBytes = int64_t{1} << 30;

/// All ranks of the job. Its collectives, and those of every group split from it, show in `status` unless that is null.
/// `piece_bytes` is a multiple of 8; other values than the default are for tests.
std::unique_ptr<HostComm> make_mpi_world(int64_t piece_bytes = kMpiPieceBytes, RankStatus* status = nullptr);

}  // namespace perigee
