// The head sizes that attention's kernels are compiled for.
#pragma once

#include <cstdint>

namespace perigee::kernels {

/// Calls f.operator()<D>() for the head size; plans refuse all others.
template <class F>
void with_head_dim(int64_t head_dim, F f) {
    switch (head_dim) {
        case 32:
            return f.template operator()<32>();
        case 64:
            return f.template operator()<64>();
        case 96:
            return f.template operator()<96>();
        default:
            return f.template operator()<128>();
    }
}
/// The same for the head sizes of the sm90 kernels.
template <class F>
void with_sm90_head_dim(int64_t head_dim, F f) {
    return head_dim == 64 ? f.template operator()<64>() : f.template operator()<128>();
}

}  // namespace perigee::kernels
