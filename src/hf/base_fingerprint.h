// What tells the weights that adapters were trained on, or that training froze, from others.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/bf16.h"
#include "parallel/param_spec.h"

namespace perigee {

/// 64 bits from names, shapes and values, rounded to bf16: the same for any layout, in any order, on the CPU and on a
/// GPU. Elements that several ranks add are added up: their sums are.
class BaseFingerprint {
  public:
    /// Elements `first`, `first` + 1, ... of a tensor. Every element of the model's frozen tensors counts once.
    void add(std::string const& name, Shape const& shape, int64_t first, std::span<bf16 const> values);
    uint64_t sum() const { return sum_; }
    static std::string text(uint64_t sum);  ///< 16 hexadecimal digits

  private:
    uint64_t sum_ = 0;
};

}  // namespace perigee
