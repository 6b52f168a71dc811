// What lies between the attention of one transformer block and that of the next, for few rows, in one kernel.
#pragma once

#include "kernels/decode/project.h"

namespace perigee::decode {

/// x += o W_o^T, y = SwiGLU of norm(x) W^T, x += y W_down^T, then the next block's project(), if there is one. The bits
/// are those of gemv(), gemv_swiglu() and project().
struct BlockTail {
    bf16 const* o = nullptr;          ///< [rows, width]
    bf16 const* w_o = nullptr;        ///< [hidden, width]
    bf16 const* norm = nullptr;       ///< [hidden]
    bf16 const* w_gate_up = nullptr;  ///< [2 intermediate, hidden]: the gates first
    bf16 const* w_down = nullptr;     ///< [hidden, intermediate]
    bf16* x = nullptr;                ///< [rows, hidden]
    bf16* y = nullptr;                ///< [rows, intermediate]
    unsigned* arrived = nullptr;      ///< zero before and after
    float eps = 0;
    int64_t rows = 0;  ///< 1 to 16
    int64_t width = 0, hidden = 0, intermediate = 0;
    Project const* next = nullptr;  ///< its product reads x
};
/// Whether block_tail() supports these arguments: widths in multiples of 512, and rows that fit into shared memory.
bool takes_block_tail(BlockTail const& args);
/// All its thread blocks must be on the GPU at once: no other kernel of this kind may run beside it.
void block_tail(BlockTail const& args, cudaStream_t stream);

}  // namespace perigee::decode
