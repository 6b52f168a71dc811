// The place of a flat range of values in the global tensor it belongs to: what random numbers are keyed by, so that
// they do not depend on how a tensor is cut. Host and device code.
#pragma once

#include <cstdint>

namespace perigee {

/// Where a flat range of values lies in a global tensor: value i is element e = begin + i of a row-major box with rows
/// of `width` values, which begins at index `first` of the tensor and whose rows lie `stride` apart there.
struct TensorPart {
    int64_t begin = 0;
    int64_t first = 0;
    int64_t width = 1;
    int64_t stride = 1;
    /// Of value i in the tensor.
    constexpr int64_t index(int64_t i) const {
        int64_t const e = begin + i;
        return first + e / width * stride + e % width;
    }
};

}  // namespace perigee
