// Decoding on NVIDIA GPUs: one new token of each sequence, whose keys, values and block means lie in a cache of pages.
// Nothing waits for the GPU or allocates; results repeat bitwise. Lengths and tables are read on the device, so
// launches can be replayed while texts grow. Rules and kernels: README.md.
#pragma once

#include <driver_types.h>

#include "base/bf16.h"
#include "kernels/block_selection/selection.h"
#include "kernels/block_sparse_attention/plan.h"
#include "kernels/decode/scratch.h"

namespace perigee::decode {

/// Device pointers, tensors aligned to 16 bytes. Token t of sequence s is row t % P of page table[s][t / P].
struct Cache {
    // select_attend reads means, and attend over all blocks reads k and v, of blocks that were complete before this
    // step, while earlier kernels still run. So between a kernel that writes them and these two stands one that waits
    // for all before it and only then lets the next begin: embedding, merge or select_attend does.
    bf16* k = nullptr;      ///< [pages, P, G, K]
    bf16* v = nullptr;      ///< the same
    bf16* means = nullptr;  ///< [pages, G, K]: of a block, at its first page
    // No kernel writes these two, so a kernel may read them before the kernels before it are done.
    int32_t const* table = nullptr;    ///< [S, M]
    int32_t const* lengths = nullptr;  ///< [S]: tokens before the newest; -1: no sequence
    int32_t sequences = 0;             ///< S
    int32_t row_pages = 0;             ///< M
    int32_t page_size = 0;             ///< P
    int32_t block_size = 0;            ///< B, a multiple of P
    int32_t kv_heads = 0;              ///< G
    int32_t head_dim = 0;              ///< K: 32, 64, 96 or 128

    constexpr int32_t most_blocks() const { return static_cast<int32_t>(int64_t{row_pages} * page_size / block_size); }
};

/// Writes the newest k and v [S, G, K], and the means of the blocks that they complete.
void append(Cache const& cache, bf16 const* k, bf16 const* v, cudaStream_t stream);

/// Means of blocks [first, first + count) of sequence 0.
void pool(Cache const& cache, int64_t first, int64_t count, cudaStream_t stream);

struct Select {
    Cache cache;
    bf16 const* q = nullptr;    ///< [S, H, K]
    int32_t* chosen = nullptr;  ///< [S, H, k - 1]
    int32_t heads = 0;          ///< H
    int32_t first_head = 0;     ///< number of the first among all of the model
    KernelArch arch = KernelArch::sm80;
    float* scores = nullptr;      ///< scratch memory: select_floats() of most_blocks()
    unsigned* arrived = nullptr;  ///< [S, G], zero before and after the call
    cudaStream_t stream = nullptr;
};
/// Writes all of `chosen`: past blocks, ascending, then -1. With the gate, those that moba_gate_select chooses.
void select(Select const& args, Selection const& selection);

struct Attend {
    Cache cache;
    bf16* o = nullptr;                ///< [S, H, K]
    bf16 const* q = nullptr;          ///< [S, H, K]
    int32_t const* chosen = nullptr;  ///< [S, H, slots]
    int32_t heads = 0;                ///< H
    int32_t slots = 0;
    bool all = false;          ///< every block of the past, and no `chosen`
    bool pools = false;        ///< also writes the means of blocks that the newest tokens complete
    float scale = 0;           ///< of the scores: positive
    float* scratch = nullptr;  ///< attend_floats() of most_splits()
    cudaStream_t stream = nullptr;
};
void attend(Attend const& args);
int64_t most_splits(Attend const& args);

}  // namespace perigee::decode
