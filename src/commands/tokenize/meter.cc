#include "commands/tokenize/meter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace perigee {

Meter::Meter(FileSystem& files, std::vector<Path> const& paths, double seconds) : between_(seconds), next_(seconds) {
    for (Path const& path : paths) all_bytes_ += files.file_size(path);
}

double Meter::seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void Meter::show(int64_t bytes, int64_t skipped, int64_t tokens) {
    double const spent = seconds(), here = static_cast<double>(std::max<int64_t>(1, bytes - skipped));
    double const left = spent / here * static_cast<double>(all_bytes_ - bytes);
    std::string const speed = fmt::format("{:.2f} M tokens/s", static_cast<double>(tokens) / 1e6 / spent);
    if (bar_.active()) return bar_.update(bytes, all_bytes_, left, speed);
    if (spent < next_) return;
    next_ = spent + between_;
    fmt::print(stderr, "perigee: {} of {} ({:.0f}%), {}, {} left\n", format_bytes(bytes), format_bytes(all_bytes_),
               100 * static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(1, all_bytes_)), speed,
               format_duration(left));
    std::fflush(stderr);
}

}  // namespace perigee
