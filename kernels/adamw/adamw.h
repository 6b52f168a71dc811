// AdamW (Loshchilov & Hutter 2019) in one pass over flat ranges: fp32 weights, moments and gradients, as Ops::adamw
// defines it, and the new weights rounded to bf16, to the nearest or stochastically.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/bf16.h"
#include "base/philox.h"

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
    /// Rounds up with a probability of the part cut off, by bits 16 (i % 2) of word i % 8 / 2 of Philox block i / 8 for
    /// element i; Purpose::rounding, another stream for each tensor and step. Null: to the nearest, ties to even.
    Philox const* rounding = nullptr;
};
void adamw(AdamW const& args, cudaStream_t stream);

}  // namespace perigee::kernels
