// Documents of a pack.
#pragma once

#include <cstdint>

namespace perigee::kernels {

/// The last document that begins at or before token t: the one that holds it, as empty ones come before it.
__device__ inline int find_document(int32_t const* cu_seqlens, int documents, int t) {
    int low = 0, high = documents;
    while (high - low > 1) {
        int const middle = (low + high) / 2;
        if (cu_seqlens[middle] <= t)
            low = middle;
        else
            high = middle;
    }
    return low;
}

}  // namespace perigee::kernels
