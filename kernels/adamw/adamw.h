// AdamW (Loshchilov & Hutter 2019) in one pass over flat ranges, as Ops::adamw defines it: fp32 weights, moments and
// gradients, and a bf16 copy of the new weights. Moments may also be bf16 with stochastic rounding.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/bf16.h"
#include "base/philox.h"
#include "tensor/tensor_part.h"

namespace perigee::kernels {

/// n elements each.
struct AdamW {
    float* w;
    float* m;  ///< null if the moments are bf16
    float* v;
    bf16* narrow_m;  ///< null if the moments are fp32
    bf16* narrow_v;
    float const* g;
    bf16* rounded;  ///< or null
    int64_t count;
    double lr;
    double beta1;
    double beta2;
    double eps;
    double weight_decay;
    double grad_scale;
    int64_t step;   ///< 1 at the first update
    Philox random;  ///< for stochastic rounding of bf16 moments
    TensorPart part;
};
void adamw(AdamW const& args, cudaStream_t stream);

}  // namespace perigee::kernels
