// AdamW (Loshchilov & Hutter 2019) in one pass over flat ranges: fp32 weights, moments and gradients, as Ops::adamw
// defines it, and the new weights rounded to bf16.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/bf16.h"

namespace perigee::kernels {

/// n elements each.
struct AdamW {
    float* w;
    float* m;
    float* v;
    float const* g;
    bf16* rounded;  ///< or null
    int64_t count;
    double lr;
    double beta1;
    double beta2;
    double eps;
    double weight_decay;
    double grad_scale;
    int64_t step;  ///< 1 at the first update
};
void adamw(AdamW const& args, cudaStream_t stream);

}  // namespace perigee::kernels
