// Runs of bf16 that a thread fetches ahead of their use, so that a loop over rows waits for memory only once: a ring of
// stages in shared memory, of which each thread has its own part. No thread sees another's, so no barrier is needed.
#pragma once

#include <cuda_pipeline_primitives.h>

#include "kernels/common/vector.cuh"

namespace perigee::kernels {

template <int N, int kRuns, int kStages>
class Ahead {
  public:
    static constexpr int kDepth = kStages;
    static constexpr size_t bytes(unsigned threads) { return size_t{kStages} * kRuns * threads * sizeof(Run<bf16, N>); }

    /// `memory`: bytes(blockDim.x) of shared memory, at a multiple of 16 bytes.
    __device__ explicit Ahead(void* memory) : mine_(static_cast<Run<bf16, N>*>(memory) + threadIdx.x) {}

    /// Begins to fetch run `run` of the current stage.
    __device__ __forceinline__ void fetch(int run, bf16 const* from) {
        if constexpr (N == 8)
            __pipeline_memcpy_async(slot(filling_, run), from, sizeof(Run<bf16, N>));
        else
            *slot(filling_, run) = load_run<N>(from);
    }
    /// Ends a stage, perhaps an empty one: as many are ended as are opened.
    __device__ __forceinline__ void end_stage() {
        __pipeline_commit();
        filling_ = filling_ + 1 == kStages ? 0 : filling_ + 1;
    }
    /// Waits for the oldest stage.
    __device__ __forceinline__ void open_stage() {
        __pipeline_wait_prior(kStages - 1);
        open_ = open_ + 1 == kStages ? 0 : open_ + 1;
    }
    __device__ __forceinline__ Run<bf16, N> run(int run) const { return *slot(open_, run); }

  private:
    __device__ __forceinline__ Run<bf16, N>* slot(int stage, int run) const {
        return mine_ + (stage * kRuns + run) * static_cast<int>(blockDim.x);
    }
    Run<bf16, N>* mine_;
    int filling_ = 0;
    int open_ = kStages - 1;
};

}  // namespace perigee::kernels
