// The loss over a vocabulary, whole or sharded, and its gradient, as Ops::softmax_stats, Ops::softmax_rescale and
// Ops::cross_entropy define them. Logits are bf16 and read once for the statistics (running maximum and sum, Milakov &
// Gimelshein 2018) and once for the gradient, which may be written over them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/bf16.h"

namespace perigee::kernels {

struct SoftmaxStats {
    float* max;              ///< [T]
    float* sum;              ///< [T]
    float* target;           ///< [T]
    bf16 const* logits;      ///< [T, V]
    int32_t const* targets;  ///< [T], in the whole vocabulary
    int64_t tokens;
    int64_t vocab;
    int64_t vocab_begin;
};
void softmax_stats(SoftmaxStats const& args, cudaStream_t stream);

struct SoftmaxRescale {
    float* sum;               ///< [T]
    float const* max;         ///< [T]
    float const* global_max;  ///< [T]
    int64_t tokens;
};
void softmax_rescale(SoftmaxRescale const& args, cudaStream_t stream);

struct CrossEntropy {
    float* nll;              ///< [T]
    bf16* dlogits;           ///< [T, V] or null; may be the memory of logits
    bf16 const* logits;      ///< [T, V]; not read without dlogits
    int32_t const* targets;  ///< [T]
    float const* weights;    ///< [T]
    float const* max;        ///< [T]
    float const* sum;        ///< [T]
    float const* target;     ///< [T]
    int64_t tokens;
    int64_t vocab;
    int64_t vocab_begin;
    double scale;
};
void cross_entropy(CrossEntropy const& args, cudaStream_t stream);

}  // namespace perigee::kernels
