// Draws one token per row of logits on a GPU. Kernels: README.md.
#pragma once

#include <driver_types.h>

#include <cstddef>

#include "base/bf16.h"
#include "kernels/sampling/draw_rule.h"

namespace perigee::kernels {

/// Device pointers.
struct SampleTokens {
    int32_t* ids = nullptr;           ///< [rows]: token drawn; -1: none
    bf16 const* logits = nullptr;     ///< [rows, width]
    DrawRule const* rules = nullptr;  ///< [rows]
    uint32_t* seen = nullptr;         ///< [rows, words]: one bit per id; null if no rule has a repetition penalty
    int64_t rows = 0;
    int64_t width = 0;
    int64_t words = 0;
    int64_t allowed = 0;        ///< only ids below this may be drawn; at most `width`
    void* scratch = nullptr;    ///< sample_scratch_bytes()
    unsigned* zeros = nullptr;  ///< sample_zeros() elements, zero before and after
};
size_t sample_scratch_bytes(int64_t rows);
size_t sample_zeros(int64_t rows);  ///< elements
/// The id is also -1 if more than 4,096 tokens may be drawn or a logit is not a number: the host must draw then. A
/// drawn token is marked as seen. Results are bitwise reproducible, and each row is independent of the others.
void sample_tokens(SampleTokens const& args, cudaStream_t stream);

}  // namespace perigee::kernels
