// Parts of dense attention, for tests and for each other.
#pragma once

#include "kernels/dense_attention/dense_attention.h"
#include "kernels/dense_attention/schedule.cuh"

namespace perigee::dense {

struct Tiling {
    int32_t rows;             ///< of a tile
    int32_t heads;            ///< that have tiles of their own
    int32_t group;            ///< of them, that share keys and values
    int32_t bytes_per_token;  ///< that such a group reads again and again
};
/// Makes the order of the problem's tiles in schedule_bytes(documents) of scratch memory.
Schedule schedule_tiles(DenseAttentionProblem const& problem, void* scratch, Tiling const& tiling);

}  // namespace perigee::dense
