#include "comm/host_board.h"

#include <chrono>

namespace perigee {

char const* to_string(Collective collective) noexcept {
    switch (collective) {
        case Collective::none:
            return "none";
        case Collective::all_reduce:
            return "all_reduce";
        case Collective::all_gather:
            return "all_gather";
        case Collective::reduce_scatter:
            return "reduce_scatter";
        case Collective::all_to_all:
            return "all_to_all";
        case Collective::broadcast:
            return "broadcast";
        case Collective::barrier:
            return "barrier";
        case Collective::split:
            return "split";
    }
    return "unknown";
}

int64_t steady_nanoseconds() noexcept {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace perigee
