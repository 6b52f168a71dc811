// Elementwise SwiGLU.
#pragma once

#include "kernels/swiglu/swiglu.h"

namespace perigee::kernels {

__device__ __forceinline__ float sigmoid(float x) { return 1 / (1 + __expf(-x)); }

/// Replaces gate and up by their gradients.
__device__ __forceinline__ void to_gradient(float& gate, float& up, float dy) {
    float const x = gate, s = sigmoid(x);
    gate = dy * up * s * (1 + x * (1 - s));
    up = dy * x * s;
}

/// swiglu_backward() with a quantised result.
void swiglu_backward_quantised(SwigluBackward const& args, cudaStream_t stream);

}  // namespace perigee::kernels
