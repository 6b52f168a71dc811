#include "kernels/common/launch.h"
#include "kernels/common/vector.cuh"
#include "kernels/flat/flat.h"

namespace perigee::kernels {

namespace {

constexpr int kThreads = 256;

/// Philox::normal, with the same roundings up to the last bits of the mathematical functions.
__device__ double normal(Philox const& random, uint64_t index) {
    auto const b = random.block(index);
    uint64_t const first = b[0] | (static_cast<uint64_t>(b[1]) << 32);
    uint64_t const second = b[2] | (static_cast<uint64_t>(b[3]) << 32);
    double const u = (static_cast<double>(first >> 11) + 1.0) * 0x1.0p-53;
    double const v = static_cast<double>(second >> 11) * 0x1.0p-53;
    constexpr double kPi = 3.14159265358979323846;
    return sqrt(-2.0 * log(u)) * cos(2.0 * kPi * v);
}

template <class T>
__global__ void __launch_bounds__(kThreads) normals(T* x, FillNormal const a) {
    int64_t const i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i >= a.count) return;
    x[i] = narrow<T>(static_cast<float>(a.stddev * normal(a.random, static_cast<uint64_t>(a.part.index(i)))));
}

__global__ void __launch_bounds__(kThreads) rope(RopeTable const a) {
    int64_t const i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i >= a.tokens * a.frequencies) return;
    int64_t const t = i / a.frequencies;
    double const angle = a.positions[t] * a.inverse_frequencies[i - t * a.frequencies];
    double sine, cosine;
    sincos(angle, &sine, &cosine);
    a.cos[i] = static_cast<float>(a.magnitude * cosine);
    a.sin[i] = static_cast<float>(a.magnitude * sine);
}

template <class T>
void fill(T* x, FillNormal const& args, cudaStream_t stream) {
    if (args.count == 0) return;
    normals<<<static_cast<unsigned>(ceil_div(args.count, kThreads)), kThreads, 0, stream>>>(x, args);
    check_launch("fill_normal");
}

}  // namespace

void fill_normal(float* x, FillNormal const& args, cudaStream_t stream) { fill(x, args, stream); }
void fill_normal(bf16* x, FillNormal const& args, cudaStream_t stream) { fill(x, args, stream); }

void rope_table(RopeTable const& args, cudaStream_t stream) {
    int64_t const count = args.tokens * args.frequencies;
    if (count == 0) return;
    rope<<<static_cast<unsigned>(ceil_div(count, kThreads)), kThreads, 0, stream>>>(args);
    check_launch("rope_table");
}

}  // namespace perigee::kernels
