// The gate by warp products: 64 queries against the centroids of 64 blocks at a time. Takes every shape.
#include "kernels/ampere/tile.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/moba_gate/gate.h"

namespace perigee::moba_gate {
namespace {

using namespace block_sparse;
using namespace ampere;

struct SelectArgs {
    bf16 const* q;
    bf16 const* centroids;
    int32_t* chosen;
    Block const* blocks;
    int32_t const* block_of;
    int32_t queries, query_begin, heads, kv_heads, slots;
    int32_t summed;  ///< heads that share a selection
    bool force_previous;
};

/// The best so many (score, block) pairs of a row, best first, spread over the lanes of a warp: entry i is at lane
/// i % 32 in register i / 32. Equal scores: the later block is better. Empty entries are (-inf, -1).
template <int kRegisters>
struct TopKRow {
    float score[kRegisters];
    int32_t block[kRegisters];

    __device__ void clear() {
#pragma unroll
        for (int e = 0; e < kRegisters; ++e) score[e] = -INFINITY, block[e] = -1;
    }
    // Between steps the pairs of a row wait in shared memory.
    __device__ void load(float const* scores, int32_t const* blocks, int lane) {
#pragma unroll
        for (int e = 0; e < kRegisters; ++e) score[e] = scores[e * 32 + lane], block[e] = blocks[e * 32 + lane];
    }
    __device__ void store(float* scores, int32_t* blocks, int lane) const {
#pragma unroll
        for (int e = 0; e < kRegisters; ++e) scores[e * 32 + lane] = score[e], blocks[e * 32 + lane] = block[e];
    }
    /// The score of the last of `slots` entries: what a later block must reach.
    __device__ float threshold(int slots) const {
        return __shfl_sync(kAllLanes, score[kRegisters - 1], (slots - 1) % 32);
    }
    /// Blocks come in ascending order, so the new one goes before its equals. The whole warp calls.
    __device__ void insert(float new_score, int32_t new_block, int lane) {
        float carried_score = new_score;
        int32_t carried_block = new_block;
        bool inserted = false;
#pragma unroll
        for (int e = 0; e < kRegisters; ++e) {
            int const better = __popc(__ballot_sync(kAllLanes, score[e] > new_score));
            int const at = inserted ? 0 : better;  // 32: not in this register
            float const up_score = __shfl_up_sync(kAllLanes, score[e], 1);
            int32_t const up_block = __shfl_up_sync(kAllLanes, block[e], 1);
            float const last_score = __shfl_sync(kAllLanes, score[e], 31);
            int32_t const last_block = __shfl_sync(kAllLanes, block[e], 31);
            if (lane > at) score[e] = up_score, block[e] = up_block;
            if (lane == at) score[e] = carried_score, block[e] = carried_block;
            if (at < 32) carried_score = last_score, carried_block = last_block, inserted = true;
        }
    }
};

constexpr int kGateThreads = 128;
constexpr int kGateRows = 64;     // queries of a thread block, 16 per warp
constexpr int kGateBlocks = 64;   // candidates of a step
constexpr int kScoreStride = 72;  // of a row of scores in shared memory: 8 more than 64 spread rows over the banks

template <int D, int kRegisters>
struct GateShared {
    bf16 means[2][kGateBlocks * tile_stride<D>()];
    float scores[kGateRows][kScoreStride];
    float best_score[kGateRows][32 * kRegisters];
    int32_t best_block[kGateRows][32 * kRegisters];
};

/// Fragments of the 16 queries of a warp, straight from memory; zeros beyond the last.
template <int D>
__device__ void load_queries(uint32_t (&x)[D / 16][4], SelectArgs const& a, int query, int head) {
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

/// Lets a step's scores compete for one row's slots. `candidates` of this row; returns the new threshold.
template <int kRegisters>
__device__ float compete(float const* scores, float* best_score, int32_t* best_block, int32_t from, int2 candidates,
                         float threshold, int slots, bool force_previous) {
    int const lane = threadIdx.x % 32;
    TopKRow<kRegisters> best;
    bool loaded = false;
    for (int half = 0; half < kGateBlocks / 32; ++half) {
        int32_t const block = from + half * 32 + lane;
        float score = scores[half * 32 + lane];
        if (force_previous && block == candidates.y - 1) score = INFINITY;
        bool const candidate = block >= candidates.x && block < candidates.y;
        unsigned left = __ballot_sync(kAllLanes, candidate && score >= threshold);
        if (left != 0 && !loaded) {
            best.load(best_score, best_block, lane);
            loaded = true;
        }
        while (left != 0) {
            int const source = __ffs(static_cast<int>(left)) - 1;
            best.insert(__shfl_sync(kAllLanes, score, source), from + half * 32 + source, lane);
            threshold = best.threshold(slots);
            left &= left - 1;
            left &= __ballot_sync(kAllLanes, score >= threshold);
        }
    }
    if (loaded) best.store(best_score, best_block, lane);
    return threshold;
}

/// Writes a row's blocks in ascending order, counted from `first`, then -1.
template <int kRegisters>
__device__ void write_selection(TopKRow<kRegisters> const& best, int32_t first, int slots, int copies, int32_t* out) {
    int const lane = threadIdx.x % 32;
    int rank[kRegisters] = {}, count = 0;
#pragma unroll
    for (int e = 0; e < kRegisters; ++e)
        for (int i = 0; i < min(slots - e * 32, 32); ++i) {
            int32_t const other = __shfl_sync(kAllLanes, best.block[e], i);
            count += other >= 0;
#pragma unroll
            for (int mine = 0; mine < kRegisters; ++mine) rank[mine] += other >= 0 && other < best.block[mine];
        }
    for (int copy = 0; copy < copies; ++copy, out += slots)
#pragma unroll
        for (int e = 0; e < kRegisters; ++e) {
            int const i = e * 32 + lane;
            if (i < count) out[rank[e]] = best.block[e] - first;
            if (i >= count && i < slots) out[i] = -1;
        }
}

/// 64 queries of one head, or of `summed` heads that share a selection, against 64 candidates at a time.
template <int D, int kRegisters>
__global__ void __launch_bounds__(kGateThreads) gate_kernel(SelectArgs const a) {
    start_early();
    auto& shared = *reinterpret_cast<GateShared<D, kRegisters>*>(dynamic_shared());
    int const thread = threadIdx.x, lane = thread % 32, warp_row = thread / 32 * 16;
    int const tile = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kGateRows;  // the longest rows first
    int const query = tile + warp_row;                                          // this warp's first
    int const head = static_cast<int>(blockIdx.y) * a.summed;
    int64_t const g = head / (a.heads / a.kv_heads);

    int2 candidates = {0, 0};  // of row `lane` of this warp; none beyond the last query
    if (lane < 16 && query + lane < a.queries) {
        candidates.y = a.block_of[a.query_begin + query + lane];
        candidates.x = a.blocks[candidates.y].first;
    }
    float threshold = -INFINITY;  // likewise of row `lane`
    TopKRow<kRegisters> best;
    best.clear();
    for (int row = warp_row; row < warp_row + 16; ++row)
        best.store(shared.best_score[row], shared.best_block[row], lane);
    int32_t const begin = a.blocks[a.block_of[a.query_begin + tile]].first;
    int32_t const end = a.block_of[a.query_begin + min(tile + kGateRows, a.queries) - 1];

    auto const load_means = [&](int32_t from, int stage) {
        load_rows<D, kGateBlocks, kGateThreads>(shared.means[stage], [&](int row, bool& there) {
            there = from + row < end;
            return a.centroids + (int64_t{there ? from + row : 0} * a.kv_heads + g) * D;
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
        float s[8][4] = {};
        for (int h = 0; h < a.summed; ++h) {
            if (a.summed > 1) load_queries<D>(q, a, query, head + h);
#pragma unroll
            for (int step = 0; step < D / 16; ++step) multiply_rows<D>(s, q[step], shared.means[stage], step);
        }
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            float* const at = &shared.scores[warp_row + lane / 4][n * 8 + lane % 4 * 2];
            *reinterpret_cast<float2*>(at) = make_float2(s[n][0], s[n][1]);
            *reinterpret_cast<float2*>(at + 8 * kScoreStride) = make_float2(s[n][2], s[n][3]);
        }
        __syncwarp();
        for (int row = 0; row < 16; ++row) {
            int2 const of_row = {__shfl_sync(kAllLanes, candidates.x, row), __shfl_sync(kAllLanes, candidates.y, row)};
            float const reach = __shfl_sync(kAllLanes, threshold, row);
            if (of_row.x >= from + kGateBlocks || of_row.y <= from) continue;
            int const at = warp_row + row;
            float const new_reach = compete<kRegisters>(shared.scores[at], shared.best_score[at], shared.best_block[at],
                                                        from, of_row, reach, a.slots, a.force_previous);
            if (lane == row) threshold = new_reach;
        }
        __syncwarp();  // the scores have been read
    }
    __syncwarp();
    for (int row = 0; row < 16 && query + row < a.queries; ++row) {
        best.load(shared.best_score[warp_row + row], shared.best_block[warp_row + row], lane);
        int32_t const first = __shfl_sync(kAllLanes, candidates.x, row);
        write_selection<kRegisters>(best, first, a.slots, a.summed,
                                    a.chosen + (int64_t{query + row} * a.heads + head) * a.slots);
    }
}

SelectArgs select_args(Stage const& stage, int32_t* chosen) {
    BlockSparseShape const& shape = stage.plan.shape;
    MobaOptions const& options = stage.plan.options;
    return {.q = stage.problem.q,
            .centroids = stage.scratch.centroids,
            .chosen = chosen,
            .blocks = stage.scratch.table.blocks,
            .block_of = stage.scratch.table.block_of,
            .queries = static_cast<int32_t>(shape.queries),
            .query_begin = static_cast<int32_t>(stage.problem.query_begin),
            .heads = static_cast<int32_t>(shape.heads),
            .kv_heads = static_cast<int32_t>(shape.kv_heads),
            .slots = static_cast<int32_t>(shape.slots()),
            .summed = static_cast<int32_t>(options.selection == MobaSelection::per_group ? shape.group() : 1),
            .force_previous = options.force_previous};
}

template <int D, int kRegisters>
void launch_gate(Stage const& stage, int32_t* chosen) {
    SelectArgs const args = select_args(stage, chosen);
    launch({"gate", ceil_div(args.queries, kGateRows), args.heads / args.summed, kGateThreads,
            sizeof(GateShared<D, kRegisters>), stage.problem.stream, 1, true},
           gate_kernel<D, kRegisters>, args);
}

}  // namespace

void select_blocks_sm80(Stage const& stage, int32_t* chosen) {
    with_head_dim(stage.plan.shape.head_dim, [&]<int D>() {
        if (stage.plan.shape.slots() <= 32)
            launch_gate<D, 1>(stage, chosen);
        else
            launch_gate<D, 2>(stage, chosen);
    });
}

}  // namespace perigee::moba_gate
