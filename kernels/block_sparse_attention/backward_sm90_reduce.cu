// Sums what the sm90 backward left in parts, in a fixed order: dQ partials, and dk and dv of split or carried KV tiles.
#include <cuda_fp16.h>

#include "kernels/block_sparse_attention/backward_sm90.cuh"
#include "kernels/block_sparse_attention/launch.cuh"

namespace perigee::block_sparse {
namespace {

constexpr int kSumThreads = 256;

struct SumArgs {
    BackwardArgs f;
    int32_t const* block_of;
};

constexpr int kSlotsAtOnce = 8;

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
__global__ void __launch_bounds__(kSumThreads, 4) query_sums_kernel(SumArgs const x) {
    constexpr int kLanes = D / 8;
    BackwardArgs const& f = x.f;
    AttentionArgs const& a = f.a;
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

    int32_t const local = x.block_of[token];
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
        for (int i = 0; i < kSlotsAtOnce; ++i) {
            uint4 const y = used[i] ? part[i] : uint4{};
            sum[0] += low(y.x), sum[1] += high(y.x), sum[2] += low(y.y), sum[3] += high(y.y);
            sum[4] += low(y.z), sum[5] += high(y.z), sum[6] += low(y.w), sum[7] += high(y.w);
        }
    }
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = pack(sum[2 * i] * a.scale, sum[2 * i + 1] * a.scale);
    transpose_quad(word);
    if (there) *dq = {word[0], word[1], word[2], word[3]};
}

struct LayoutArgs {
    uint4* dq;
    int64_t count;
    float scale;
    int row_bits;  ///< a row is 2 to this eights
    RowStats const* rows;
};
constexpr int kLayoutThreads = 256, kLayoutsAtOnce = 4;

/// Converts dq from scaled fp16 to bf16 with its columns in order: kLayoutsAtOnce times eight numbers a thread.
__global__ void __launch_bounds__(kLayoutThreads) query_layout_kernel(LayoutArgs const x) {
    int64_t const first = int64_t{blockIdx.x} * (kLayoutsAtOnce * kLayoutThreads) + threadIdx.x;
    uint4 part[kLayoutsAtOnce];
    float scale[kLayoutsAtOnce];
#pragma unroll
    for (int i = 0; i < kLayoutsAtOnce; ++i) {
        int64_t const at = first + i * kLayoutThreads;
        part[i] = at < x.count ? __ldcs(x.dq + at) : uint4{};
        scale[i] = at < x.count ? x.scale * inverse_of_power(x.rows[at >> x.row_bits].factor) : 0;
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
        if (at < x.count) x.dq[at] = {word[0], word[1], word[2], word[3]};
    }
}

/// One thread block per (KV tile, head). KV tiles with one split are done, unless their sums are carried.
template <int D>
__global__ void __launch_bounds__(kConsumers) key_sums_kernel(BackwardArgs const f) {
    AttentionArgs const& a = f.a;
    auto const index = static_cast<int32_t>(blockIdx.x) / f.kv_tiles,
               kv_tile = static_cast<int32_t>(blockIdx.x) % f.kv_tiles;
    auto const head = static_cast<int32_t>(blockIdx.y);
    Block const block = a.blocks[index];
    int32_t const key = block.begin + kv_tile * kKvTile;
    if (key >= block.end) return;
    int64_t const at = int64_t{head} * (a.capacity + 1) + index;
    int32_t const kv_tiles = (block.end - block.begin + kKvTile - 1) / kKvTile;
    int32_t const splits = (f.split_begin[at + 1] - f.split_begin[at]) / kv_tiles;
    if (splits == 0 && (!f.carry || f.carry_out)) return;
    int32_t first = f.split_begin[at] + kv_tile * splits;
    for (int32_t h = 0; h < head; ++h) first += f.split_begin[int64_t{h + 1} * (a.capacity + 1) - 1];
    int const thread = threadIdx.x;
    bool const add_carried = block.begin < f.earlier || (f.carry && splits == 0);
    KeyRange const keys{key + thread / 128 * 64, min(block.end, key + kKvTile), a.head + head, a.add_to_dkv};
#pragma unroll
    for (int which = 0; which < 2; ++which) {
        float sum[D / 2] = {};
        float4* const carried = sums_of<D>(f.carried, carried_slot(f, index, key), which, thread);
        if (add_carried) add_sums<D>(sum, carried);
        for (int32_t i = 0; i < splits; ++i) add_sums<D>(sum, sums_of<D>(f.splits, first + i, which, thread));
        if (f.carry && f.carry_out)
            store_sums<D>(carried, sum);
        else
            write_key_gradient<D>(a, sum, which == 0 ? a.scale : 1.0f, which == 0 ? a.dk : a.dv, thread, keys);
    }
}

template <int D>
void sum_query_gradients(Stage const& stage, Pass const& pass, BackwardArgs const& f) {
    int64_t const rows = int64_t{f.a.pass_end - f.a.pass_begin} * f.a.group;
    launch({"sum_query_gradients", ceil_div(rows, kSumThreads / (D / 8)), pass.heads, kSumThreads, 0,
            stage.problem.stream},
           query_sums_kernel<D>, SumArgs{f, stage.scratch.table.block_of});
}

/// Of all rows: adds_to_dq means one pass.
void lay_query_gradients_out(Stage const& stage, BackwardArgs const& f) {
    BlockSparseShape const& s = stage.plan.shape;
    int64_t const count = s.queries * s.heads * s.head_dim / 8;
    launch({"lay_query_gradients_out", ceil_div(count, kLayoutsAtOnce * kLayoutThreads), 1, kLayoutThreads, 0,
            stage.problem.stream},
           query_layout_kernel,
           LayoutArgs{reinterpret_cast<uint4*>(f.a.dq), count, f.a.scale, s.head_dim == 64 ? 3 : 4, f.a.rows});
}

template <int D>
void sum_key_gradients(Stage const& stage, Pass const& pass, BackwardArgs const& f) {
    launch({"sum_key_gradients", stage.plan.blocks * f.kv_tiles, pass.heads, kConsumers, 0, stage.problem.stream},
           key_sums_kernel<D>, f);
}

}  // namespace

void reduce_gradients_sm90(Stage const& stage, Pass const& pass, BlockSparseGradients const& gradients) {
    BackwardArgs const f = backward_args(stage, pass, gradients);
    auto const kv_tile = [&]<int D>() {
        if (f.adds_to_dq)
            lay_query_gradients_out(stage, f);
        else
            sum_query_gradients<D>(stage, pass, f);
        sum_key_gradients<D>(stage, pass, f);
    };
    if (stage.plan.shape.head_dim == 64)
        kv_tile.operator()<64>();
    else
        kv_tile.operator()<128>();
}

}  // namespace perigee::block_sparse
