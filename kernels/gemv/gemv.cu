#include "kernels/gemv/stream.cuh"

namespace perigee::kernels {

namespace {

using namespace gemv_detail;

struct Plain {
    InOrder rows;
    bf16* y;
    bool accumulate;
    struct Place {
        bf16* to;
        bf16 before;
    };
    __device__ static Nothing of_row(int, bool) { return {}; }
    __device__ __forceinline__ Place prepare(Nothing, int row, int32_t tile, int column, bool there) const {
        int64_t const at = int64_t{tile} * kColumns + column;
        if (!there || at >= rows.n) return {nullptr, narrow<bf16>(0.f)};
        bf16* const to = y + row * int64_t{rows.n} + at;
        return {to, accumulate ? *to : narrow<bf16>(0.f)};
    }
    __device__ __forceinline__ void finish(Place const& place, int, int32_t, int, float value, float) const {
        if (place.to != nullptr) *place.to = narrow<bf16>(widen(place.before) + value);
    }
};

/// A tile has four gate columns and the four matching up columns.
struct HalvesInTurn {
    int32_t half;
    __device__ int64_t row(int32_t tile, int i) const { return i / 4 * int64_t{half} + int64_t{tile} * 4 + i % 4; }
};

struct Swiglu {
    HalvesInTurn rows;
    bf16* y;
    __device__ static Nothing of_row(int, bool) { return {}; }
    __device__ static bool prepare(Nothing, int, int32_t, int column, bool there) { return there && column < 4; }
    __device__ __forceinline__ void finish(bool there, int row, int32_t tile, int column, float value,
                                           float other) const {
        if (!there) return;
        float const gate = widen(narrow<bf16>(value)), up = widen(narrow<bf16>(other));
        y[row * int64_t{rows.half} + int64_t{tile} * 4 + column] =
            narrow<bf16>(up * (gate * (1 / (1 + __expf(-gate)))));
    }
};

}  // namespace

bool takes_gemv(Gemv const& args) {
    bool const normed = args.norm == nullptr || args.k <= int64_t{kNormVectors} * 8 * kThreads;
    return 0 < args.rows && args.rows <= kMostRows && args.k > 0 && args.k % kChunk == 0 && args.n > 0 &&
           args.n <= INT_MAX && args.k <= INT_MAX && normed && in_runs_of_eight(args.k, {args.x, args.w, args.norm}) &&
           fits(args, kShallow);
}

void gemv(Gemv const& args, bf16* y, bool accumulate, cudaStream_t stream) {
    run(args, ceil_div(args.n, kColumns), Plain{{static_cast<int32_t>(args.n)}, y, accumulate}, stream);
}

void gemv_swiglu(Gemv const& args, bf16* y, cudaStream_t stream) {
    run(args, args.n / 8, Swiglu{{static_cast<int32_t>(args.n / 2)}, y}, stream);
}

}  // namespace perigee::kernels
