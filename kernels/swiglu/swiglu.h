// y = silu(gate) * up (Shazeer 2020) and its backward, as Ops::swiglu_forward and Ops::swiglu_backward define them.
// A row of gate_up holds gate in columns [0, F) and up in [F, 2F).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/bf16.h"
#include "kernels/quantize/quantize.h"

namespace perigee::kernels {

struct SwigluForward {
    bf16* y;              ///< [T, F]
    bf16 const* gate_up;  ///< [T, 2F]
    int64_t tokens;
    int64_t width;  ///< F
};
void swiglu_forward(SwigluForward const& args, cudaStream_t stream);

struct SwigluBackward {
    bf16* dgate_up;       ///< [T, 2F]; may alias gate_up; null if the gradient is quantised
    bf16 const* dy;       ///< [T, F]
    bf16 const* gate_up;  ///< [T, 2F]
    int64_t tokens;
    int64_t width;              ///< F
    Quantized quantised = {};   ///< gradient with 1 x 128 tiles; needs T and F to be multiples of 128
    Quantized transposed = {};  ///< its transpose; set together with `quantised`
};
void swiglu_backward(SwigluBackward const& args, cudaStream_t stream);

}  // namespace perigee::kernels
