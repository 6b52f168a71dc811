// The gate by warp products: 64 queries against the centroids of 64 blocks at a time. Takes every shape.
#include "kernels/ampere/tile.cuh"
#include "kernels/common/head_dim.h"
#include "kernels/common/launch.cuh"
#include "kernels/moba_gate/gate.h"

namespace perigee::moba_gate {
namespace {

using namespace block_sparse;
using namespace ampere;

constexpr int kGateThreads = 128;
constexpr int kGateRows = 64;     // queries of a thread block, 16 per warp
constexpr int kGateBlocks = 64;   // candidates of a step
constexpr int kScoreStride = 68;  // of a row of scores in shared memory: 4 more than 64 spread rows over the banks

/// One slot of every row. They follow GateShared, best first; empty ones are (-inf, -1).
struct Slot {
    float score[kGateRows];
    int32_t block[kGateRows];
};

template <int D>
struct GateShared {
    bf16 means[2][kGateBlocks * tile_stride<D>()];
    float scores[kGateRows][kScoreStride];
};

/// Fragments of the 16 queries of a warp, straight from memory; zeros beyond the last.
template <int D>
__device__ void load_queries(uint32_t (&x)[D / 16][4], GateArgs const& a, int query, int head) {
    int const lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        int const row = query + lane / 4 + half * 8;
        bf16 const* const at = a.q + (int64_t{row} * a.heads + head) * D + lane % 4 * 2;
#pragma unroll
        for (int step = 0; step < D / 16; ++step) {
            x[step][half] = row < a.queries ? *reinterpret_cast<uint32_t const*>(at + step * 16) : 0;
            x[step][half + 2] = row < a.queries ? *reinterpret_cast<uint32_t const*>(at + step * 16 + 8) : 0;
        }
    }
}

/// Lets the scores of blocks [from, from + kGateBlocks) compete for the slots of a row, whose candidates are blocks
/// [low, high). Blocks come in ascending order, so one goes before its equals. A lane's business.
__device__ void compete(GateArgs const& a, float const* scores, Slot* best, int row, int32_t from, int32_t low,
                        int32_t high) {
    float worst = best[a.slots - 1].score[row];
    for (int i = 0; i < kGateBlocks; i += 4) {
        float4 const four = *reinterpret_cast<float4 const*>(scores + i);
        float const score[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            int32_t const block = from + i + j;
            float const its = a.force_previous && block == high - 1 ? INFINITY : score[j];
            if (block < low || block >= high || !(its >= worst)) continue;
            int slot = a.slots - 1;
            for (; slot > 0 && best[slot - 1].score[row] <= its; --slot) {
                best[slot].score[row] = best[slot - 1].score[row];
                best[slot].block[row] = best[slot - 1].block[row];
            }
            best[slot].score[row] = its;
            best[slot].block[row] = block;
            worst = best[a.slots - 1].score[row];
        }
    }
}

/// Writes a row's blocks in ascending order, counted from its document's first, then -1. Called by one lane per row.
__device__ void write_selection(GateArgs const& a, Slot const* best, int row, int32_t first, int32_t local,
                                int32_t* out) {
    if (a.first > 0) *out++ = first < local ? 0 : -1;
    int count = 0;
    for (int slot = 0; slot < a.slots; ++slot) {
        int32_t const block = best[slot].block[row];
        if (block < 0) continue;
        int rank = 0;
        for (int other = 0; other < a.slots; ++other)
            rank += best[other].block[row] >= 0 && best[other].block[row] < block;
        out[rank] = block - first;
        ++count;
    }
    for (; count < a.slots; ++count) out[count] = -1;
}

/// 64 queries of one head, or of `summed` heads that share a selection, against 64 candidates at a time.
template <int D>
__global__ void __launch_bounds__(kGateThreads) gate_kernel(GateArgs const a) {
    start_early();
    auto& shared = *reinterpret_cast<GateShared<D>*>(dynamic_shared());
    auto* const best = reinterpret_cast<Slot*>(&shared + 1);
    int const thread = threadIdx.x, lane = thread % 32, warp_row = thread / 32 * 16;
    int const tile = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kGateRows;  // the longest rows first
    int const query = tile + warp_row;                                          // this warp's first
    int const head = static_cast<int>(blockIdx.y) * a.summed, row = warp_row + lane;
    int64_t const g = head / a.group;

    bool const mine = lane < 16 && query + lane < a.queries;  // the lane has a row
    int32_t const high = mine ? a.block_of[a.query_begin + query + lane] : 0,
                  document = mine ? a.blocks[high].first : 0;
    int32_t const low = document + a.first;
    for (int slot = 0; mine && slot < a.slots; ++slot) best[slot].score[row] = -INFINITY, best[slot].block[row] = -1;
    int32_t const begin = a.blocks[a.block_of[a.query_begin + tile]].first;
    int32_t const end = a.block_of[a.query_begin + min(tile + kGateRows, a.queries) - 1];

    auto const load_means = [&](int32_t from, int stage) {
        load_rows<D, kGateBlocks, kGateThreads>(shared.means[stage], a.centroids, [&](int block) {
            return from + block < end ? int64_t{from + block} * a.kv_heads + g : -1;
        });
        end_copy_group();
    };
    uint32_t q[D / 16][4];
    load_queries<D>(q, a, query, head);
    if (begin < end) load_means(begin, 0);
    int stage = 0;
    for (int32_t from = begin; from < end; from += kGateBlocks, stage ^= 1) {
        wait_for_copy_groups<0>();
        __syncthreads();
        if (from + kGateBlocks < end) load_means(from + kGateBlocks, stage ^ 1);
        float s[32] = {};
        for (int h = 0; h < a.summed; ++h) {
            if (a.summed > 1) load_queries<D>(q, a, query, head + h);
#pragma unroll
            for (int step = 0; step < D / 16; ++step) multiply_rows<D>(s, q[step], shared.means[stage], step);
        }
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            float* const at = &shared.scores[warp_row + lane / 4][n * 8 + lane % 4 * 2];
            *reinterpret_cast<float2*>(at) = make_float2(s[4 * n], s[4 * n + 1]);
            *reinterpret_cast<float2*>(at + 8 * kScoreStride) = make_float2(s[4 * n + 2], s[4 * n + 3]);
        }
        __syncwarp();
        if (mine && low < from + kGateBlocks && from < high) compete(a, shared.scores[row], best, row, from, low, high);
        __syncwarp();  // the scores have been read
    }
    for (int h = 0; mine && h < a.summed; ++h)
        write_selection(a, best, row, document, high,
                        a.chosen + (int64_t{query + lane} * a.heads + head + h) * a.all_slots());
}

}  // namespace

void select_blocks_sm80(Stage const& stage, int32_t* chosen) {
    GateArgs const args = gate_args(stage, chosen);
    with_head_dim(stage.plan.shape.head_dim, [&]<int D>() {
        size_t const bytes = sizeof(GateShared<D>) + sizeof(Slot) * static_cast<size_t>(args.slots);
        launch({.name = "gate",
                .grid = {ceil_div(args.queries, kGateRows), args.heads / args.summed},
                .threads = kGateThreads,
                .shared_bytes = bytes,
                .stream = stage.problem.stream,
                .early = true},
               gate_kernel<D>, args);
    });
}

}  // namespace perigee::moba_gate
