#include "kernels/common/flat.cuh"
#include "kernels/common/stochastic.cuh"
#include "kernels/flat/flat.h"

namespace perigee::kernels {

namespace {

using Random = std::array<uint32_t, 4>;

/// `n`: the element's place among the eight that share a block of random numbers.
__device__ __forceinline__ bf16 round(float x, Random const& random, int n) {
    return round_up_or_down(x, random[n / 2] >> (n % 2 * 16) & 0xffffu);
}

struct Round {
    StochasticRounding a;

    template <int N>
    __device__ __forceinline__ void run(int64_t i) const {
        int64_t const first = a.part.index(i);
        if (N == 1 || first % 8 != 0 || a.part.index(i + 7) != first + 7) {
#pragma unroll 1
            for (int j = 0; j < N; ++j) {
                auto const n = static_cast<uint64_t>(a.part.index(i + j));
                a.to[i + j] = round(a.from[i + j], a.random.block(n / 8), static_cast<int>(n % 8));
            }
            return;
        }
        float x[N];
        load(x, a.from + i);
        Random const random = a.random.block(static_cast<uint64_t>(first) / 8);
        Run<bf16, N> run;
#pragma unroll
        for (int j = 0; j < N; ++j) run.values[j] = round(x[j], random, j);
        store_run<N>(a.to + i, run);
    }
};

}  // namespace

void round_stochastically(StochasticRounding const& args, cudaStream_t stream) {
    for_each(Round{args}, args.count, in_runs_of_eight(0, {args.to, args.from}), "round_stochastically", stream);
}

}  // namespace perigee::kernels
