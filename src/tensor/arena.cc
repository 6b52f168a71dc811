#include "tensor/arena.h"

#include <algorithm>

namespace perigee {

namespace {
constexpr size_t kAlignment = 256;
constexpr size_t kMinimumBlock = size_t{4} << 20;
size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
}  // namespace

TensorView Arena::allocate(std::string_view name, DType dtype, Shape shape) {
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
    size_t before = 0;
    for (size_t i = 0; i < block_; ++i) before += blocks_[i].bytes();
    peak_ = std::max(peak_, before + used_);
    return {memory, dtype, shape};
}

void Arena::settle() {
    PERIGEE_CHECK(block_ == 0 && used_ == 0, "settle() while tensors are in use");
    if (blocks_.size() <= 1) return;
    blocks_.clear();
    blocks_.emplace_back(*device_, peak_);
    ++growths_;
}

int64_t Arena::capacity_bytes() const {
    size_t bytes = 0;
    for (Buffer const& b : blocks_) bytes += b.bytes();
    return static_cast<int64_t>(bytes);
}

}  // namespace perigee
