// Selection by position on the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/block_selection/selection.h"

namespace perigee::kernels {

struct SelectByPosition {
    int32_t* chosen = nullptr;            ///< [rows, heads, top_k - 1]
    int32_t const* cu_seqlens = nullptr;  ///< [documents + 1], on the device
    int64_t documents = 0;
    int64_t query_begin = 0;  ///< token of the first row
    int64_t rows = 0;
    int64_t heads = 0;
    int64_t first_head = 0;  ///< number of the first head among all of the model
};

/// False, and nothing is done, where `selection` needs more than positions.
bool select_by_position(SelectByPosition const& args, Selection const& selection, cudaStream_t stream);

}  // namespace perigee::kernels
