// What ends an answer: ids one after the other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace perigee {

/// Holds tokens back as long as they may be the beginning of what ends an answer.
class Ending {
  public:
    Ending(std::vector<int32_t> stop, std::function<void(int32_t)> release)
        : stop_(std::move(stop)), release_(std::move(release)) {}

    /// True when the end is complete.
    bool push(int32_t id) {
        held_.push_back(id);
        while (!std::equal(held_.begin(), held_.end(), stop_.begin())) release_first();
        return held_.size() == stop_.size();
    }
    void release_all() {
        while (!held_.empty()) release_first();
    }

  private:
    void release_first() {
        release_(held_.front());
        held_.erase(held_.begin());
    }

    std::vector<int32_t> stop_, held_;
    std::function<void(int32_t)> release_;
};

}  // namespace perigee
