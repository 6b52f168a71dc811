#include "kernels/hopper_probe.h"

#include "device/cuda/cuda_device.h"
#include "kernels/common/launch.h"
#include "kernels/hopper/bulk_copy.cuh"
#include "kernels/hopper/product.cuh"
#include "kernels/hopper/tensor_map.h"

namespace perigee::testing {
namespace {

using namespace hopper;

constexpr int kRows = 128;

/// Rows [row, row + 64) of a result to memory.
template <int kCount>
__device__ void write_result(float const (&d)[kCount], float* to, int row) {
    int const thread = threadIdx.x % 128, lane = thread % 32;
    for (int i = 0; i < kCount; ++i) {
        int const r = row + thread / 32 * 16 + lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        to[r * 2 * kCount + column] = d[i];
    }
}

template <int D>
__global__ void __launch_bounds__(256) probe_kernel(HopperProbe const p, __grid_constant__ CUtensorMap const b_map,
                                                    __grid_constant__ CUtensorMap const v_map) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) unsigned char memory[];
    constexpr int kTile = tile_bytes<kRows, D>();
    unsigned char *const a = memory, *const b = memory + kTile, *const v = memory + 2 * kTile;
    __shared__ Barrier arrived;
    int const thread = threadIdx.x, group = thread / 128;
    for (int i = thread; i < 3 * kTile; i += 256) memory[i] = 0xff;
    if (thread == 0) {
        arrived.init(256 + 1);
        publish_barriers();
    }
    fence_shared_for_async();
    __syncthreads();
    if (thread == 0) {
        arrived.arrive_and_expect(2 * kTile);
        for (int panel = 0; panel < D / 64; ++panel) {
            int const at = panel * panel_bytes<kRows>(), column = panel * 64;
            copy_box(b + at, b_map, arrived, column, static_cast<int>(p.head), static_cast<int>(p.first));
            copy_box(v + at, v_map, arrived, column, static_cast<int>(p.head), static_cast<int>(p.first));
        }
    }
    for (int i = thread; i < kRows * D / 8; i += 256) {
        int const row = i / (D / 8), piece = i % (D / 8), from = p.gather[row];
        copy_vector(shared_address(a) + swizzled_offset<kRows>(row, piece), p.a + max(from, 0) * D + piece * 8,
                    from >= 0);
    }
    kernels::finish_copies();
    fence_shared_for_async();
    arrived.arrive();
    arrived.wait(0);

    float s[kRows / 2], o[D / 2];
    products_begin();
    for (int step = 0; step < D / 16; ++step)
        multiply<Inner::columns, Inner::columns>(s, columns_factor<kRows>(shared_address(a), group * 64, step),
                                                 columns_factor<kRows>(shared_address(b), 0, step), step > 0);
    products_commit();
    products_wait<0>();
    pin(s);
    write_result(s, p.scores, group * 64);

    uint32_t left[kRows / 16][4];
    for (int step = 0; step < kRows / 16; ++step) to_left(left[step], s, step);
    products_begin();
    for (int step = 0; step < kRows / 16; ++step)
        multiply<Inner::rows>(o, left[step], rows_factor<kRows>(shared_address(v), 0, step), step > 0);
    products_commit();
    products_wait<0>();
    pin(o);
    write_result(o, p.outputs, group * 64);

    if (group * 64 >= D) return;
    products_begin();
    for (int step = 0; step < kRows / 16; ++step)
        multiply<Inner::rows, Inner::rows>(o, rows_factor<kRows>(shared_address(a), group, step),
                                           rows_factor<kRows>(shared_address(v), 0, step), step > 0);
    products_commit();
    products_wait<0>();
    pin(o);
    write_result(o, p.transposed, group * 64);
#endif
}

template <int D>
void run(HopperProbe const& p, cudaStream_t stream) {
    int constexpr kBytes = 3 * tile_bytes<kRows, D>();
    check_cuda(cudaFuncSetAttribute(probe_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "probe");
    probe_kernel<D><<<1, 256, kBytes, stream>>>(p, rows_map(p.b, p.rows, p.heads, D, kRows),
                                                rows_map(p.v, p.rows, p.heads, D, kRows));
    kernels::check_launch("probe");
}

}  // namespace

void run_hopper_probe(HopperProbe const& probe, cudaStream_t stream) {
    if (probe.head_dim == 64)
        run<64>(probe, stream);
    else
        run<128>(probe, stream);
}

}  // namespace perigee::testing
