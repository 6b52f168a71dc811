// Fingerprint of frozen weights, by which a run recognises the base that adapters or other weights were trained with.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/bf16.h"
#include "parallel/param_spec.h"

namespace perigee {

/// 64-bit hash of names, shapes and values rounded to bf16. It does not depend on layout, order or device. Ranks hash
/// their own elements; the sum over ranks is the fingerprint.
class BaseFingerprint {
  public:
    /// Adds elements `first`, `first` + 1, ... of a tensor. Every element of the model's frozen tensors must be added
    /// once.
    void add(std::string const& name, Shape const& shape, int64_t first, std::span<bf16 const> values);
    uint64_t sum() const { return sum_; }
    static std::string text(uint64_t sum);  ///< 16 hexadecimal digits

  private:
    uint64_t sum_ = 0;
};

}  // namespace perigee
