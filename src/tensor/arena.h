// Stack-like memory for activations. The first step finds out how much is needed, taking blocks from the device as it
// goes; settle() then replaces them by one block, and later steps of the same shapes allocate nothing. Callers
// that know the size reserve() it, because blocks leave gaps.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "tensor/tensor.h"

namespace perigee {

/// What memory is for: bytes are counted apart by it. `communication` is what is sent from or received into.
enum class Use { activations, logits, communication };

class Arena {
  public:
    explicit Arena(Device& device) : device_(&device) {}

    /// Takes one block of this size, where there is none yet. Without that much memory left, blocks come as needed.
    void reserve(int64_t bytes);

    /// Uninitialised memory, 256-byte aligned, valid until the enclosing Scope ends. `name` shows in error messages.
    TensorView allocate(std::string_view name, DType dtype, Shape shape, Use use = Use::activations);

    using ByUse = std::array<int64_t, 3>;  ///< bytes

    /// Frees on destruction everything allocated since its construction. Scopes nest.
    class Scope {
      public:
        explicit Scope(Arena& arena) : arena_(arena), block_(arena.block_), used_(arena.used_), live_(arena.live_) {}
        ~Scope() {
            arena_.block_ = block_;
            arena_.used_ = used_;
            arena_.live_ = live_;
        }
        Scope(Scope const&) = delete;
        Scope& operator=(Scope const&) = delete;

      private:
        Arena& arena_;
        size_t block_;
        size_t used_;
        ByUse live_;
    };

    /// Merges all blocks into one of the peak size. Only between steps, when no view is in use.
    void settle();

    int64_t capacity_bytes() const;               ///< taken from the device now
    int64_t peak_bytes() const { return peak_; }  ///< most ever in use at once; what settle() keeps
    int64_t peak_bytes(Use use) const { return peaks_[static_cast<size_t>(use)]; }  ///< most ever in this use at once
    int64_t growths() const { return growths_; }  ///< times the device was asked for memory

  private:
    Device* device_;
    std::vector<Buffer> blocks_;
    size_t block_ = 0;  ///< index of the block in use
    size_t used_ = 0;   ///< bytes used in it
    ByUse live_{};
    ByUse peaks_{};
    int64_t peak_ = 0;
    int64_t growths_ = 0;
};

}  // namespace perigee
