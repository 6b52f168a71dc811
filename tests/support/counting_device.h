// The host's memory, counted: what was asked for, in order, and what is taken now. Fresh memory is full of NaN.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "device/queue.h"

namespace perigee::testing {

class CountingDevice final : public Device {
  public:
    Queue& queue() override { return queues_.at("compute"); }
    Queue& lane(std::string const& name, Priority) override { return queues_.at(name); }
    void* allocate(size_t bytes) override {
        void* const memory = host_->allocate(bytes);
        std::memset(memory, 0xff, bytes);
        live_[static_cast<std::byte*>(memory)] = bytes;
        requests_.push_back(static_cast<int64_t>(bytes));
        return memory;
    }
    void release(void* memory) noexcept override {
        live_.erase(static_cast<std::byte*>(memory));
        host_->release(memory);
    }
    void copy(void* to, void const* from, size_t bytes) override { host_->copy(to, from, bytes); }
    void* allocate_host(size_t bytes) override {
        void* const memory = host_->allocate_host(bytes);
        of_host_[memory] = bytes;
        return memory;
    }
    void release_host(void* memory) noexcept override {
        of_host_.erase(memory);
        host_->release_host(memory);
    }
    void synchronize() override { host_->synchronize(); }
    std::string name() const override { return host_->name(); }
    bool is_host() const override { return true; }

    std::vector<int64_t> const& requests() const { return requests_; }
    int64_t live_bytes() const { return sum(live_); }
    int64_t host_bytes() const { return sum(of_host_); }  ///< from allocate_host(), taken now
    bool holds(void const* address) const {
        auto const* const place = static_cast<std::byte const*>(address);
        auto const after = live_.upper_bound(const_cast<std::byte*>(place));
        return after != live_.begin() && place < std::prev(after)->first + std::prev(after)->second;
    }

  private:
    static int64_t sum(auto const& sizes) {
        size_t bytes = 0;
        for (auto const& [memory, size] : sizes) bytes += size;
        return static_cast<int64_t>(bytes);
    }

    std::unique_ptr<Device> host_ = make_host_device();
    std::map<std::byte*, size_t> live_;
    std::map<void*, size_t> of_host_;
    std::vector<int64_t> requests_;
    ImmediateQueues queues_{*this};
};

}  // namespace perigee::testing
