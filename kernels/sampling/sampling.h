// Draws tokens from logits on a GPU, one for each row. Kernels: README.md.
#pragma once

#include <driver_types.h>

#include <cstddef>

#include "base/bf16.h"
#include "kernels/sampling/draw_rule.h"

namespace perigee::kernels {

/// Device pointers.
struct SampleTokens {
    int32_t* ids = nullptr;           ///< [rows]: drawn; -1: nothing is
    bf16 const* logits = nullptr;     ///< [rows, width]
    DrawRule const* rules = nullptr;  ///< [rows]
    uint32_t* seen = nullptr;         ///< [rows, words]: a bit for each id; null: no rule has a penalty
    int64_t rows = 0;
    int64_t width = 0;
    int64_t words = 0;
    int64_t allowed = 0;        ///< ids that may be drawn: at most `width`
    void* scratch = nullptr;    ///< sample_scratch_bytes()
    unsigned* zeros = nullptr;  ///< sample_zeros(): zeros before and after
};
size_t sample_scratch_bytes(int64_t rows);
size_t sample_zeros(int64_t rows);  ///< numbers
/// -1 also where more than 4,096 tokens may be drawn, and where logits are not numbers: the host is to draw then. What
/// is drawn counts as seen. Results repeat bitwise, and a row's depends on no other.
void sample_tokens(SampleTokens const& args, cudaStream_t stream);

}  // namespace perigee::kernels
