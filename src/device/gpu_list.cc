#include "device/gpu_list.h"

#include <cctype>
#include <cstdlib>

namespace perigee {

int gpus_present(std::filesystem::path const& dev) {
    char const* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    if (visible != nullptr && (visible[0] == '\0' || visible[0] == '-')) return 0;
    int count = 0;
    std::error_code error;
    for (std::filesystem::directory_iterator entry(dev, error), end; !error && entry != end; entry.increment(error)) {
        std::string const name = entry->path().filename().string();  // nvidia0, not nvidiactl or nvidia-uvm
        if (name.starts_with("nvidia") && name.size() > 6 && std::isdigit(static_cast<unsigned char>(name[6])) != 0)
            ++count;
    }
    return count;
}

}  // namespace perigee
