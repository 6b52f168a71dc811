// The GPUs that this process may use, by their place on the PCI bus, which all processes of a host see alike.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace perigee {

struct GpuList {
    /// Of usable GPUs, in CUDA's order, such as "0000:19:00.0": the position is the index that make_cuda_device()
    /// takes.
    std::vector<std::string> pci_ids;
    /// Why GPUs that are there cannot be used; empty where there are none, or they can. GPUs that CUDA_VISIBLE_DEVICES
    /// hides are not there.
    std::string problem;
};
/// Initialises CUDA's driver, but takes no memory of any GPU.
GpuList list_gpus();
/// Whether this program can use GPUs at all.
bool built_with_cuda();

/// NVIDIA GPUs that the system shows this process as devices, unless CUDA_VISIBLE_DEVICES hides all.
int gpus_present(std::filesystem::path const& dev = "/dev");

}  // namespace perigee
