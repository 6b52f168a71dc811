// Runs of bf16 that a thread fetches ahead of their use, so that a loop over rows waits for memory only once: a ring of
// stages in shared memory, of which each thread has its own part. No thread sees another's, so no barrier is needed.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <bit>

#include "kernels/common/vector.cuh"

namespace perigee::kernels {

/// kThreads: at least those of the block, or 0: those that it is launched with. Places known to the compiler save
/// instructions.
template <int N, int kRuns, int kStages, int kThreads = 0>
class Ahead {
  public:
    static constexpr int kDepth = kStages;
    static constexpr size_t bytes(unsigned threads) {
        return size_t{kStages} * kRuns * (kThreads > 0 ? kThreads : threads) * sizeof(Run<bf16, N>);
    }

    /// `memory`: bytes(blockDim.x) of shared memory, at a multiple of 16 bytes.
    __device__ explicit Ahead(void* memory)
        : begin_(static_cast<Run<bf16, N>*>(memory) + threadIdx.x),
          filling_(begin_),
          open_(begin_ + (kStages - 1) * stage()) {}

    /// Begins to fetch run `run` of the current stage.
    __device__ __forceinline__ void fetch(int run, bf16 const* from) {
        if constexpr (N == 8)
            __pipeline_memcpy_async(filling_ + run * pitch(), from, sizeof(Run<bf16, N>));
        else
            filling_[run * pitch()] = load_run<N>(from);
    }
    /// N values of fp32 take two runs. Other threads of the block fetch them too: the cache of the multiprocessor is
    /// to keep them.
    __device__ __forceinline__ void fetch_shared(int run, float const* from) {
        auto const* const halves = reinterpret_cast<bf16 const*>(from);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if constexpr (N == 8)
                asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(
                                 static_cast<unsigned>(__cvta_generic_to_shared(filling_ + (run + half) * pitch()))),
                             "l"(halves + half * N)
                             : "memory");
            else
                filling_[(run + half) * pitch()] = load_run<N>(halves + half * N);
        }
    }
    /// Ends a stage, perhaps an empty one: as many are ended as are opened.
    __device__ __forceinline__ void end_stage() {
        __pipeline_commit();
        filling_ = next(filling_);
    }
    /// Waits for the oldest stage.
    __device__ __forceinline__ void open_stage() {
        __pipeline_wait_prior(kStages - 1);
        open_ = next(open_);
    }
    __device__ __forceinline__ Run<bf16, N> run(int run) const { return open_[run * pitch()]; }
    __device__ __forceinline__ Run<float, N> wide_run(int run) const {
        struct Halves {
            Run<bf16, N> first, second;
        };
        return std::bit_cast<Run<float, N>>(Halves{open_[run * pitch()], open_[(run + 1) * pitch()]});
    }

  private:
    static __device__ __forceinline__ int pitch() { return kThreads > 0 ? kThreads : static_cast<int>(blockDim.x); }
    static __device__ __forceinline__ int stage() { return kRuns * pitch(); }
    __device__ __forceinline__ Run<bf16, N>* next(Run<bf16, N>* place) const {
        return place == begin_ + (kStages - 1) * stage() ? begin_ : place + stage();
    }

    Run<bf16, N>* const begin_;
    Run<bf16, N>* filling_;
    Run<bf16, N>* open_;
};

}  // namespace perigee::kernels
