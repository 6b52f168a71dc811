#include <cstdlib>
#include <cstring>
#include <new>

#include "base/error.h"
#include "device/queue.h"

namespace perigee {

namespace {

constexpr size_t kAlignment = 256;

class HostDevice final : public Device {
  public:
    Queue& queue() override { return queues_.at("compute"); }
    Queue& lane(std::string const& name, Priority) override { return queues_.at(name); }
    void* allocate(size_t bytes) override {
        void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment) / kAlignment * kAlignment);
        if (memory == nullptr) throw OutOfMemory(fmt::format("out of memory: {} bytes of host memory", bytes));
        return memory;
    }
    void release(void* memory) noexcept override { std::free(memory); }
    void copy(void* to, void const* from, size_t bytes) override {
        if (bytes > 0) std::memmove(to, from, bytes);
    }
    void* allocate_host(size_t bytes) override { return allocate(bytes); }
    void release_host(void* memory) noexcept override { release(memory); }
    void synchronize() override {}
    std::string name() const override { return "cpu"; }
    bool is_host() const override { return true; }

  private:
    ImmediateQueues queues_{*this};
};

}  // namespace

std::unique_ptr<Device> make_host_device() { return std::make_unique<HostDevice>(); }

}  // namespace perigee
