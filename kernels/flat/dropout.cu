#include "kernels/common/flat.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/flat/flat.h"

namespace perigee::kernels {

namespace {

using Draws = std::array<uint32_t, 4>;

struct Drop {
    Dropout a;

    /// `n`: index of the element among the eight that share one Philox block.
    __device__ __forceinline__ float kept(float x, Draws const& draws, int n) const {
        uint32_t const draw = draws[n / 2] >> (n % 2 * 16) & 0xffffu;
        return draw < a.threshold ? 0.0f : x * a.factor;
    }

    template <int N>
    __device__ __forceinline__ void run(int64_t i) const {
        int64_t const first = a.part.index(i);
        float x[N];
        if (N == 1 || first % 8 != 0 || a.part.index(i + 7) != first + 7) {
#pragma unroll 1
            for (int j = 0; j < N; ++j) {
                auto const n = static_cast<uint64_t>(a.part.index(i + j));
                float one[1];
                load(one, a.x + i + j);
                one[0] = kept(one[0], a.random.block(n / 8), static_cast<int>(n % 8));
                store(a.y + i + j, one);
            }
            return;
        }
        load(x, a.x + i);
        Draws const draws = a.random.block(static_cast<uint64_t>(first) / 8);
#pragma unroll
        for (int j = 0; j < N; ++j) x[j] = kept(x[j], draws, j);
        store(a.y + i, x);
    }
};

}  // namespace

void dropout(Dropout const& args, cudaStream_t stream) {
    for_each(Drop{args}, args.count, in_runs_of_eight(0, {args.y, args.x}), "dropout", stream);
}

}  // namespace perigee::kernels
