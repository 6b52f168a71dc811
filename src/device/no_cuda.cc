// Linked in place of device/cuda/ when the build has no CUDA.
#include "base/error.h"
#include "device/device.h"
#include "device/gpu_list.h"
#include "device/pace.h"

namespace perigee {

int cuda_device_count() { return 0; }
int cuda_compute_major(int) { return 0; }

bool built_with_cuda() { return false; }

GpuList list_gpus() {
    int const present = gpus_present();
    if (present == 0) return {};
    return {.pci_ids = {},
            .problem = fmt::format("{} NVIDIA device{}, and this perigee was built without CUDA", present,
                                   present == 1 ? "" : "s")};
}

std::unique_ptr<Device> make_cuda_device(int) {
    fail(Category::config, "this perigee was built without CUDA: use `device: cpu`, or build the `cuda` preset");
}

std::unique_ptr<Pace> detail::make_cuda_pace(Device& device) {
    fail(Category::internal, "{} is no device of a build without CUDA", device.name());
}

}  // namespace perigee
