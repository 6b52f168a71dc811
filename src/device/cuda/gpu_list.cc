#include "device/gpu_list.h"

#include <cctype>

#include "base/error.h"
#include "device/cuda/cuda_device.h"

namespace perigee {

bool built_with_cuda() { return true; }

GpuList list_gpus() {
    GpuList list;
    int count = 0;
    if (cudaError_t const code = cudaGetDeviceCount(&count); code != cudaSuccess) {
        cudaGetLastError();
        if (int const present = gpus_present(); present > 0)
            list.problem = fmt::format("{} NVIDIA device{}, and CUDA says: {}", present, present == 1 ? "" : "s",
                                       cudaGetErrorString(code));
        return list;
    }
    for (int index = 0; index < count; ++index) {
        char id[32] = {};
        check_cuda(cudaDeviceGetPCIBusId(id, sizeof id, index), "cudaDeviceGetPCIBusId");
        std::string& text = list.pci_ids.emplace_back(id);
        for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));  // as in /sys
    }
    return list;
}

}  // namespace perigee
