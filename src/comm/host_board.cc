#include "comm/host_board.h"

#include <fmt/format.h>

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
        case Collective::exchange:
            return "exchange";
        case Collective::group:
            return "group";
        case Collective::broadcast:
            return "broadcast";
        case Collective::barrier:
            return "barrier";
        case Collective::split:
            return "split";
    }
    return "unknown";
}

char const* to_string(Axis axis) noexcept {
    switch (axis) {
        case Axis::all:
            return "all";
        case Axis::data:
            return "data";
        case Axis::context:
            return "context";
        case Axis::tensor:
            return "tensor";
        case Axis::data_context:
            return "data x context";
        case Axis::pipeline:
            return "pipeline";
        case Axis::expert:
            return "expert";
    }
    return "unknown";
}

std::string to_string(NumberedCollective const& which) {
    return fmt::format("{}{}{} #{}", which.axis == Axis::all ? "" : to_string(which.axis),
                       which.axis == Axis::all ? "" : " ", to_string(which.collective), which.sequence);
}

NumberedCollective RankStatus::waits_in() const noexcept {
    NumberedCollective const host = inside.load(), device = on_device.load();
    if (host.sequence == 0 || (device.sequence > 0 && device.sequence < host.sequence)) return device;
    return host;
}

int64_t steady_nanoseconds() noexcept {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace perigee
