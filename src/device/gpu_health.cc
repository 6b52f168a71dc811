#include "device/gpu_health.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace perigee {

namespace {

/// The few functions of NVML that are used. Codes of success are 0; a handle is a pointer.
class Nvml {
  public:
    using Handle = void*;

    Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
        if (library_ == nullptr) return;
        auto const start = function<int()>("nvmlInit_v2");
        ready_ = start != nullptr && start() == 0;
    }
    ~Nvml() {
        if (auto const end = ready_ ? function<int()>("nvmlShutdown") : nullptr; end != nullptr) end();
        if (library_ != nullptr) ::dlclose(library_);
    }
    Nvml(Nvml const&) = delete;
    Nvml& operator=(Nvml const&) = delete;

    Handle device(std::string const& pci_id) const {
        auto const find = function<int(char const*, Handle*)>("nvmlDeviceGetHandleByPciBusId_v2");
        Handle handle = nullptr;
        return find != nullptr && find(pci_id.c_str(), &handle) == 0 ? handle : nullptr;
    }
    /// A number that `name` tells of one kind of thing; nothing where it fails.
    std::optional<unsigned> number(char const* name, Handle device, unsigned kind) const {
        auto const ask = function<int(Handle, unsigned, unsigned*)>(name);
        unsigned value = 0;
        if (ask == nullptr || ask(device, kind, &value) != 0) return std::nullopt;
        return value;
    }

  private:
    template <class Signature>
    Signature* function(char const* name) const {
        return ready_ || std::string(name) == "nvmlInit_v2" ? reinterpret_cast<Signature*>(::dlsym(library_, name))
                                                            : nullptr;
    }
    void* library_;
    bool ready_ = false;
};

}  // namespace

std::optional<GpuHealth> gpu_health(std::string const& pci_id) {
    constexpr unsigned kMultiprocessors = 1, kOfTheGpu = 0;  // NVML_CLOCK_SM, NVML_TEMPERATURE_GPU
    Nvml const nvml;
    Nvml::Handle const device = nvml.device(pci_id);
    if (device == nullptr) return std::nullopt;
    auto const clock = nvml.number("nvmlDeviceGetClockInfo", device, kMultiprocessors);
    auto const most = nvml.number("nvmlDeviceGetMaxClockInfo", device, kMultiprocessors);
    auto const celsius = nvml.number("nvmlDeviceGetTemperature", device, kOfTheGpu);
    if (!clock || !most || !celsius) return std::nullopt;
    return GpuHealth{*clock, *most, *celsius};
}

std::string to_string(std::optional<GpuHealth> const& health) {
    if (!health) return "clock and temperature unknown";
    return fmt::format("{} of {} MHz, {} C", health->clock_mhz, health->max_clock_mhz, health->celsius);
}

}  // namespace perigee
