// MoBA on an NVIDIA GPU, bf16: choice of blocks, attention over the chosen blocks, and its backward. Nothing waits for
// the GPU, nothing is allocated, and launches depend on the shape alone, so a CUDA graph can replay them.
// Every sum is made in an order that the inputs decide, so results are bitwise repeatable, but for those of a backward
// that need not be (MobaShape::deterministic).
#pragma once

#include <driver_types.h>

#include "base/bf16.h"
#include "kernels/moba/moba_plan.h"

namespace perigee {

/// A problem on the device; all pointers are device memory, tensors at multiples of 16 bytes. The rows of q, o, lse and
/// chosen are the tokens [query_begin, query_begin + queries) of the pack.
struct MobaProblem {
    MobaShape shape;
    int64_t query_begin = 0;
    int32_t const* cu_seqlens = nullptr;  ///< documents + 1 borders, from 0 to tokens
    double scale = 0;                     ///< positive
    bf16 const* q = nullptr;              ///< [queries, H, K], after RoPE
    bf16 const* k = nullptr;              ///< [T, G, K]
    bf16 const* v = nullptr;
    /// [queries, H, S]: blocks counted from the document's first, strictly ascending, -1 at the end. Entries outside a
    /// query's past are ignored.
    int32_t const* chosen = nullptr;
    /// Where the block table and the lists of the choice are instead of in `scratch`: of moba_lists_bytes, at a
    /// multiple of 256 bytes. The forward leaves them there, and the backward of the same problem takes them as they
    /// are.
    void* lists = nullptr;
    /// plan_moba(...).bytes_beside(lists != nullptr), at a multiple of 256 bytes.
    void* scratch = nullptr;
    size_t scratch_limit = kMobaScratchBytes;  ///< what both may take: the option of plan_moba
    cudaStream_t stream = nullptr;
};

struct MobaGradients {
    bf16 const* d_o = nullptr;  ///< [queries, H, K]
    bf16 const* o = nullptr;    ///< as the forward left them
    float const* lse = nullptr;
    bf16* dq = nullptr;
    bf16* dk = nullptr;  ///< [T, G, K], what these queries contribute
    bf16* dv = nullptr;
    bool add_to_dkv = false;  ///< += instead of =
};

/// What MobaShape::gpu is for the current GPU, as this program was built.
MobaKernels moba_cuda_kernels();

/// Writes all of chosen [queries, H, S]. Rules: kernels/moba/README.md.
void moba_cuda_select(MobaProblem const& problem, int32_t* chosen);

/// o [queries, H, K] and lse [queries, H], the natural log-sum-exp of the scaled scores.
void moba_cuda_forward(MobaProblem const& problem, bf16* o, float* lse);

void moba_cuda_backward(MobaProblem const& problem, MobaGradients const& gradients);

}  // namespace perigee
