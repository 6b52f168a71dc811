// AdamW (Loshchilov & Hutter 2019) in one pass over flat ranges: fp32 weights, moments and gradients, as Ops::adamw
// defines it, and the new weights rounded to bf16. Or with moments in bf16, rounded up or down at random.
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
    float* m;  ///< or null, where moments are in bf16
    float* v;
    bf16* narrow_m;  ///< or null
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
    Philox random;  ///< of moments in bf16
    TensorPart part;
};
void adamw(AdamW const& args, cudaStream_t stream);

}  // namespace perigee::kernels
