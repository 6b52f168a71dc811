#include "tensor/arena.h"

#include <algorithm>
#include <numeric>

namespace perigee {

namespace {
constexpr size_t kAlignment = 256;
constexpr size_t kMinimumBlock = size_t{4} << 20;
size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
}  // namespace

void Arena::reserve(int64_t bytes) {
    if (!blocks_.empty() || bytes <= 0) return;
    try {
        blocks_.emplace_back(*device_, aligned(static_cast<size_t>(bytes)));
        ++growths_;
    } catch (OutOfMemory const&) {
    }
}

TensorView Arena::allocate(std::string_view name, DType dtype, Shape shape, Use use) {
    size_t const need = aligned(static_cast<size_t>(std::max<int64_t>(shape.size() * size_of(dtype), 1)));
    while (block_ < blocks_.size() && used_ + need > blocks_[block_].bytes()) {
        ++block_;
        used_ = 0;
    }
    if (block_ == blocks_.size()) {
        try {
            blocks_.emplace_back(*device_, std::max(need, kMinimumBlock));
        } catch (OutOfMemory const& e) {
            throw OutOfMemory(fmt::format("{} (for `{}` {} {}, with {} bytes already in use)", e.what(), name,
                                          to_string(dtype), shape.str(), capacity_bytes()));
        }
        ++growths_;
    }
    auto* memory = static_cast<std::byte*>(blocks_[block_].data()) + used_;
    used_ += need;
    device_->settle(memory, need);  // a lane may still work on what lay here before
    auto const index = static_cast<size_t>(use);
    live_[index] += static_cast<int64_t>(need);
    peaks_[index] = std::max(peaks_[index], live_[index]);
    peak_ = std::max(peak_, std::accumulate(live_.begin(), live_.end(), int64_t{0}));
    return {memory, dtype, shape};
}

void Arena::settle() {
    PERIGEE_CHECK(block_ == 0 && used_ == 0, "settle() while tensors are in use");
    if (blocks_.size() <= 1) return;
    blocks_.clear();
    blocks_.emplace_back(*device_, static_cast<size_t>(peak_));
    ++growths_;
}

int64_t Arena::capacity_bytes() const {
    size_t bytes = 0;
    for (Buffer const& b : blocks_) bytes += b.bytes();
    return static_cast<int64_t>(bytes);
}

}  // namespace perigee
