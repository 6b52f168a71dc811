// Parts of dense attention, for tests and for each other.
#pragma once

#include <algorithm>

#include "kernels/dense_attention/dense_attention.h"
#include "kernels/dense_attention/schedule.cuh"

namespace perigee::dense {

/// Calls f.operator()<D, kWindowed>() for the shape.
template <class F>
void with_tiling(DenseAttentionShape const& shape, F f) {
    auto const with = [&]<int D>() {
        shape.window > 0 ? f.template operator()<D, true>() : f.template operator()<D, false>();
    };
    switch (shape.head_dim) {
        case 64:
            return with.template operator()<64>();
        case 96:
            return with.template operator()<96>();
        default:
            return with.template operator()<128>();
    }
}
/// A window longer than any document is none.
inline int32_t window_of(DenseAttentionShape const& shape) {
    return static_cast<int32_t>(std::min(shape.window, shape.tokens));
}

struct Tiling {
    int32_t rows;             ///< of a tile
    int32_t heads;            ///< that have tiles of their own
    int32_t group;            ///< of them, that share keys and values
    int32_t bytes_per_token;  ///< that such a group reads again and again
    int32_t parts = 1;        ///< of a tile
};
/// Makes the order of the problem's tiles in schedule_bytes(documents) of scratch memory.
Schedule schedule_tiles(DenseAttentionProblem const& problem, void* scratch, Tiling const& tiling);

}  // namespace perigee::dense
