// Sums what the sm90 backward left in parts, in a fixed order: dQ partials, and dk and dv of split or carried KV tiles.
#include <cuda_fp16.h>

#include "kernels/block_sparse_attention/backward_sm90.cuh"
#include "kernels/common/head_dim.h"
#include "kernels/common/launch.cuh"

namespace perigee::block_sparse {
namespace {

constexpr int kSumThreads = 256, kSlotsAtOnce = 8;

/// Which of its slots a row uses, as bits. kLanes neighbouring lanes ask for the same row; all lanes of a warp call.
template <int kLanes>
__device__ uint64_t used_slots(AttentionArgs const& a, int32_t local_relative, int32_t row) {
    int const lane = threadIdx.x % kLanes, shift = threadIdx.x % 32 / kLanes * kLanes;
    uint64_t used = 0;
    for (int first = 0; first < a.slots; first += kLanes) {
        bool const mine = first + lane < a.slots && slot_used(a, local_relative, row, first + lane);
        uint32_t const bits = __ballot_sync(kAllLanes, mine) >> shift & ((1u << kLanes) - 1);
        used |= uint64_t{bits} << first;
    }
    return used;
}

/// A row of the pass by D / 8 lanes, eight numbers each. The first partials are read before it is known which are in
/// use; the local block's first tile group is in dq itself.
template <int D>
__global__ void __launch_bounds__(kSumThreads, 4) query_sums_kernel(BackwardArgs const f) {
    constexpr int kLanes = D / 8;
    AttentionArgs const& a = f;
    int64_t const index = int64_t{blockIdx.x} * (kSumThreads / kLanes) + threadIdx.x / kLanes;
    int64_t const rows = int64_t{a.pass_end - a.pass_begin} * a.group;
    bool const there = index < rows;
    auto const row = static_cast<int32_t>(there ? index : 0), head = static_cast<int32_t>(blockIdx.y);
    int const lane = threadIdx.x % kLanes;
    int32_t const query = a.pass_begin + f.query_of(row), token = a.query_begin + query;
    int32_t const at = query * a.heads + (a.head + head) * a.group + row - f.query_of(row) * a.group;
    auto* const dq = reinterpret_cast<uint4*>(a.dq + int64_t{at} * D) + lane;
    uint4 const first_local = __ldcs(dq);
    auto const* const partials =
        reinterpret_cast<uint4 const*>(a.partial + (int64_t{head} * a.pass_rows + row) * f.row_slots * D) + lane;
    uint4 part[kSlotsAtOnce];
#pragma unroll
    for (int i = 0; i < kSlotsAtOnce; ++i) part[i] = i < f.row_slots ? __ldcs(partials + i * kLanes) : uint4{};

    int32_t const local = f.block_of[token];
    Block const block = a.blocks[local];
    uint64_t const slots = used_slots<kLanes>(a, local - block.first, at) | uint64_t{1} << a.slots;
    int32_t const local_tile_groups = (token - block.begin) / (kKvTile * f.tile_group);  // after the first
    int32_t slot = 0, tile_group = 0;                                                    // of the next slot
    float sum[8] = {low(first_local.x), high(first_local.x), low(first_local.y), high(first_local.y),
                    low(first_local.z), high(first_local.z), low(first_local.w), high(first_local.w)};
    for (int32_t first = 0; first < f.row_slots; first += kSlotsAtOnce) {
        bool used[kSlotsAtOnce];
#pragma unroll
        for (int i = 0; i < kSlotsAtOnce; ++i) {
            used[i] = slot <= a.slots && (slots >> slot & 1) != 0 && (slot < a.slots || tile_group < local_tile_groups);
            if (++tile_group == f.tile_groups) tile_group = 0, ++slot;
        }
        if (first > 0) {
#pragma unroll
            for (int i = 0; i < kSlotsAtOnce; ++i)
                part[i] = used[i] ? __ldcs(partials + int64_t{first + i} * kLanes) : uint4{};
        }
#pragma unroll
        for (int i = 0; i < kSlotsAtOnce; ++i) add_to(sum, used[i] ? part[i] : uint4{});
    }
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = pack(sum[2 * i] * a.scale, sum[2 * i + 1] * a.scale);
    transpose_quad(word);
    if (there) *dq = {word[0], word[1], word[2], word[3]};
}

constexpr int kLayoutThreads = 256, kLayoutsAtOnce = 4;

/// Converts dq from scaled fp16 to bf16 with its columns in order: kLayoutsAtOnce times eight numbers a thread.
template <int D>
__global__ void __launch_bounds__(kLayoutThreads) query_layout_kernel(BackwardArgs const a) {
    int64_t const count = int64_t{a.queries} * a.heads * (D / 8);
    auto* const dq = reinterpret_cast<uint4*>(a.dq);
    int64_t const first = int64_t{blockIdx.x} * (kLayoutsAtOnce * kLayoutThreads) + threadIdx.x;
    uint4 part[kLayoutsAtOnce];
    float scale[kLayoutsAtOnce];
#pragma unroll
    for (int i = 0; i < kLayoutsAtOnce; ++i) {
        int64_t const at = first + i * kLayoutThreads;
        part[i] = at < count ? __ldcs(dq + at) : uint4{};
        scale[i] = at < count ? a.scale * inverse_of_power(a.rows[at / (D / 8)].factor) : 0;
    }
#pragma unroll
    for (int i = 0; i < kLayoutsAtOnce; ++i) {
        uint32_t word[4] = {part[i].x, part[i].y, part[i].z, part[i].w};
#pragma unroll
        for (uint32_t& pair : word) {
            float2 const sums = __half22float2(reinterpret_cast<__half2 const&>(pair));
            pair = pack(sums.x * scale[i], sums.y * scale[i]);
        }
        transpose_quad(word);
        int64_t const at = first + i * kLayoutThreads;
        if (at < count) dq[at] = {word[0], word[1], word[2], word[3]};
    }
}

/// One thread block per (KV tile, head). KV tiles with one split are done, unless their sums are carried.
template <int D>
__global__ void __launch_bounds__(kConsumers) key_sums_kernel(BackwardArgs const f) {
    auto const index = static_cast<int32_t>(blockIdx.x) / f.kv_tiles,
               kv_tile = static_cast<int32_t>(blockIdx.x) % f.kv_tiles;
    auto const head = static_cast<int32_t>(blockIdx.y);
    Block const block = f.blocks[index];
    int32_t const key = block.begin + kv_tile * kKvTile;
    if (key >= block.end) return;
    int64_t const at = int64_t{head} * (f.capacity + 1) + index;
    int32_t const kv_tiles = (block.end - block.begin + kKvTile - 1) / kKvTile;
    int32_t const splits = (f.split_begin[at + 1] - f.split_begin[at]) / kv_tiles;
    if (splits == 0 && (!f.carry || f.carry_out)) return;
    int32_t first = f.carried_tiles + f.split_begin[at] + kv_tile * splits;
    for (int32_t h = 0; h < head; ++h) first += f.split_begin[int64_t{h + 1} * (f.capacity + 1) - 1];
    int const thread = threadIdx.x;
    bool const add_carried = block.begin < f.earlier || (f.carry && splits == 0);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
        float sum[D / 2] = {};
        float4* const carried = sums_of<D>(f.sums, carried_slot(f, index, key), which, thread);
        if (add_carried) hopper::add_sums<D, kConsumers>(sum, carried);
        for (int32_t i = 0; i < splits; ++i)
            hopper::add_sums<D, kConsumers>(sum, sums_of<D>(f.sums, first + i, which, thread));
        if (f.carry && f.carry_out)
            hopper::store_sums<D, kConsumers>(carried, sum);
        else
            write_key_gradient<D>(f, sum, which, f.head + head, key + thread / 128 * 64, min(block.end, key + kKvTile));
    }
}

}  // namespace

void reduce_gradients_sm90(Stage const& stage, Pass const& pass, BlockSparseGradients const& gradients) {
    BackwardArgs const f = backward_args(stage, pass, gradients);
    cudaStream_t const stream = stage.problem.stream;
    with_sm90_head_dim(stage.plan.shape.head_dim, [&]<int D>() {
        int64_t const rows = int64_t{f.pass_end - f.pass_begin} * f.group, vectors = rows * f.kv_heads * (D / 8);
        if (f.adds_to_dq)  // one pass
            launch({.name = "lay_query_gradients_out",
                    .grid = {ceil_div(vectors, kLayoutsAtOnce * kLayoutThreads)},
                    .threads = kLayoutThreads,
                    .stream = stream},
                   query_layout_kernel<D>, f);
        else
            launch({.name = "sum_query_gradients",
                    .grid = {ceil_div(rows, kSumThreads / (D / 8)), pass.heads},
                    .threads = kSumThreads,
                    .stream = stream},
                   query_sums_kernel<D>, f);
        launch({.name = "sum_key_gradients",
                .grid = {stage.plan.blocks * f.kv_tiles, pass.heads},
                .threads = kConsumers,
                .stream = stream},
               key_sums_kernel<D>, f);
    });
}

}  // namespace perigee::block_sparse
