// What a GPU says of itself through NVML, the library of NVIDIA's driver, which is looked for when it is first asked.
#pragma once

#include <optional>
#include <string>

namespace perigee {

struct GpuHealth {
    unsigned clock_mhz = 0;      ///< of its multiprocessors, now
    unsigned max_clock_mhz = 0;  ///< that it may reach
    unsigned celsius = 0;
};
/// Of the GPU at this place on the PCI bus, as GpuList has it. Nothing where there is no such GPU, no NVML, or it does
/// not answer.
std::optional<GpuHealth> gpu_health(std::string const& pci_id);

/// "1410 of 1980 MHz, 84 C"; "clock and temperature unknown" for nothing.
std::string to_string(std::optional<GpuHealth> const& health);

}  // namespace perigee
