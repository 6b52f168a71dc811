// Rows of an embedding table, and the gradient of the table, as Ops::embedding_forward and Ops::embedding_backward
// define them. The backward sorts the tokens by their rows (by the rest of a division of the row by 128, or a higher
// power of two where the quotients would not fit a thread block's shared memory: above 2^17 rows on Hopper, 2^16 with
// 99 KiB, then by the quotient) and cuts them into units of 32, whichever rows
// are frequent. A unit adds the tokens of a row in their order, from zero; of a row in several units, the last to
// finish adds up what they leave, in their order, from zero. Then the sum is added to the table. No two threads add to
// the same place.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/bf16.h"

namespace perigee::kernels {

struct EmbeddingForward {
    bf16* x;             ///< [T, D]
    int32_t const* ids;  ///< [T], in the whole vocabulary
    bf16 const* table;   ///< [V, D], rows [vocab_begin, vocab_begin + V) of the vocabulary
    int64_t tokens;
    int64_t vocab;
    int64_t width;
    int64_t vocab_begin;
};
void embedding_forward(EmbeddingForward const& args, cudaStream_t stream);

struct EmbeddingBackward {
    float* dtable_accumulated;  ///< [V, D]
    int32_t const* ids;         ///< [T]
    bf16 const* dx;             ///< [T, D]
    int64_t tokens;             ///< below 2^31
    int64_t vocab;              ///< below 2^31
    int64_t width;
    int64_t vocab_begin;
    void* scratch;  ///< embedding_backward_scratch() bytes
};
size_t embedding_backward_scratch(int64_t tokens, int64_t width);
void embedding_backward(EmbeddingBackward const& args, cudaStream_t stream);

}  // namespace perigee::kernels
