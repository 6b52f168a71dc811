#include "device/cpu_name.h"

#include <fstream>

namespace perigee {

std::string cpu_name() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        size_t const colon = line.find(": ");
        if (line.starts_with("model name") && colon != line.npos) return line.substr(colon + 2);
    }
    return "cpu";
}

}  // namespace perigee
