// What a rank sends in a collective that runs around a ring.
#pragma once

#include <cstdint>

#include "comm/host_board.h"

namespace perigee {

/// Bytes sent by each of n ranks, for an input of x bytes per rank. all_gather: x (n-1). reduce_scatter, all_to_all:
/// x (n-1)/n. all_reduce: 2 x (n-1)/n, a reduce_scatter and an all_gather. broadcast: x (n-1)/n, the mean of a chain.
inline double ring_bytes(Collective collective, int64_t brought, int ranks) {
    auto const x = static_cast<double>(brought);
    double const others = ranks - 1;
    switch (collective) {
        case Collective::all_gather:
            return x * others;
        case Collective::all_reduce:
            return 2 * x * others / ranks;
        default:
            return x * others / ranks;
    }
}

}  // namespace perigee
