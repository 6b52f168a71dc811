// The gate on sm90: query tiles against the centroids of 64 blocks at a time; warps sift the scores for each row's top
// k while the tensor cores make the next. Blocks go from the latest to the first: recent ones tend to score high, which
// settles thresholds early. Thread blocks are persistent and take the tiles with most candidates first. A tile's rows
// are queries of all heads of a group, or, where the heads share a selection (kSummed), their sums: the heads' queries
// then come one after the other.
#include "kernels/common/head_dim.h"
#include "kernels/common/launch.cuh"
#include "kernels/hopper/bulk_copy.cuh"
#include "kernels/hopper/product.cuh"
#include "kernels/hopper/tensor_map.h"
#include "kernels/moba_gate/gate.h"
#include "kernels/moba_gate/sum_of_heads.cuh"
#include "kernels/moba_gate/top_k_rows.cuh"

namespace perigee::moba_gate {
namespace {

using namespace block_sparse;
using namespace kernels;
using hopper::Barrier;
using hopper::Inner;
using hopper::RingPosition;

constexpr int kStepBlocks = 64;
constexpr int kStages = 4;

struct TileArgs : GateArgs {
    CUtensorMap q_map, centroids_map;
    int32_t tile_queries;  ///< of a tile: as many as fit, with all their rows
    int32_t tiles;         ///< of a key/value head
};

/// Candidates of a query: blocks [low, high).
struct Range {
    int32_t low;
    int32_t high;
};

/// A tile of rows, as a warp that chooses must know it: queries [query, query + count) of the heads of kv head g.
struct alignas(16) TileInfo {
    int32_t query, count, g;
    int32_t steps;  ///< from the candidates of the last query to those of the first
    int32_t end;    ///< candidates of the last query end here
    Range always;   ///< candidates of all queries
    int32_t alike;  ///< whether all queries have the same
};

template <int D, int kSlots, int kWarpgroups, bool kSummed>
struct GateShared {
    static constexpr int kRows = 64 * kWarpgroups;
    static constexpr int kQueryStages = kSummed ? 2 : 1;
    unsigned char q[kQueryStages][hopper::tile_bytes<kRows, D>()];
    unsigned char means[kStages][hopper::tile_bytes<kStepBlocks, D>()];
    typename TopKRows<kSlots>::Laid laid[4 * kWarpgroups];
    Range range[kRows];  ///< of the tile's queries
    uint8_t query_of[kRows];
    TileInfo tile_info;
    Barrier q_full[kQueryStages], q_free[kQueryStages], full[kStages], free[kStages];
};

[[maybe_unused]] __device__ __forceinline__ TileInfo uniform(TileInfo const& w) {
    using hopper::uniform;
    return {uniform(w.query), uniform(w.count), uniform(w.g),
            uniform(w.steps), uniform(w.end),   {uniform(w.always.low), uniform(w.always.high)},
            uniform(w.alike)};
}

/// The warp that has everything brought.
template <int D, bool kSummed, class Shared>
__device__ void bring(TileArgs const& a, Shared& shared) {
    constexpr int kPerLane = Shared::kRows / 32;
    int const lane = threadIdx.x % 32;
    Range range[kPerLane] = {};
    auto const tile_at = [&](int32_t item) -> TileInfo {
        int32_t const query = (a.tiles - 1 - item / a.kv_heads) * a.tile_queries;
        return {query, min(a.tile_queries, a.queries - query), item % a.kv_heads};
    };
    auto const look_up = [&](int32_t item) {
        if (item >= a.tiles * a.kv_heads) return;
        TileInfo const tile = tile_at(item);
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
            if (i * 32 + lane < tile.count) {
                int32_t const local = a.block_of[a.query_begin + tile.query + i * 32 + lane];
                range[i] = {a.blocks[local].first + a.first, local};
            }
    };
    look_up(static_cast<int32_t>(blockIdx.x));
    RingPosition<Shared::kQueryStages> rows;
    RingPosition<kStages> ring;
    for (auto item = static_cast<int32_t>(blockIdx.x); item < a.tiles * a.kv_heads; item += gridDim.x) {
        TileInfo tile = tile_at(item);
        shared.q_free[rows.stage].wait(rows.free_parity());  // then the tile before is known to all, too
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
            if (i * 32 + lane < tile.count) shared.range[i * 32 + lane] = range[i];
        __syncwarp();
        Range const first = shared.range[0], last = shared.range[tile.count - 1];
        tile.end = last.high;
        tile.steps = (tile.end - first.low + kStepBlocks - 1) / kStepBlocks;
        tile.always = {last.low, first.high};
        tile.alike = first.low == last.low && first.high == last.high;
        if (lane == 0) shared.tile_info = tile;
        for (int32_t h = 0; h < (kSummed ? a.group : 1); ++h, rows.advance()) {
            if (h > 0) shared.q_free[rows.stage].wait(rows.free_parity());
            Barrier& full = shared.q_full[rows.stage];
            if (lane != 0) {
                full.arrive();
            } else {
                full.arrive_and_expect(a.tile_queries * (kSummed ? 1 : a.group) * D * 2);
                hopper::copy_tile<Shared::kRows, D>(shared.q[rows.stage], a.q_map, full, tile.g * a.group + h,
                                                    tile.query, hopper::Keep::evict_first);
            }
        }
        look_up(item + static_cast<int32_t>(gridDim.x));
        for (int32_t step = 0; step < tile.steps; ++step, ring.advance()) {
            if (lane != 0) continue;
            shared.free[ring.stage].wait(ring.free_parity());
            shared.full[ring.stage].arrive_and_expect(hopper::tile_bytes<kStepBlocks, D>());
            hopper::copy_tile<kStepBlocks, D>(shared.means[ring.stage], a.centroids_map, shared.full[ring.stage],
                                              tile.g, tile.end - (step + 1) * kStepBlocks, hopper::Keep::evict_last);
        }
        __syncwarp();
    }
}

/// Of a row's candidates, the lane's first row, the scores that belong to the tile of blocks from `from` on.
[[maybe_unused]] __device__ __forceinline__ uint32_t candidates_of(Range const& range, int32_t from) {
    int32_t const block = from + static_cast<int32_t>(threadIdx.x) % 4 * 2;
    return scores_below(range.high - block) & ~scores_below(range.low - block);
}

/// Makes NaN of the scores that are not valid.
[[maybe_unused]] __device__ __forceinline__ void erase_others(float (&s)[32], uint32_t valid) {
#pragma unroll
    for (int n = 0; n < 32; ++n)
        if ((valid >> n & 1) == 0) s[n] = NAN;
}

/// Makes the blocks before the rows' local the best there are.
[[maybe_unused]] __device__ __forceinline__ void force_previous(float (&s)[32], Range const (&range)[2], int32_t from) {
    int32_t const block = from + static_cast<int32_t>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int n = 0; n < 32; ++n)
        if (n / 4 * 8 + n % 2 == range[n / 2 % 2].high - 1 - block) s[n] = INFINITY;
}

/// Writes the row's blocks, counted from its document's first. Called by the two lanes that hold them.
template <int kSlots>
__device__ __forceinline__ void write_selection(int32_t const (&blocks)[kSlots], TileArgs const& a, Range const& range,
                                                int64_t row) {
    int32_t const document = range.low - a.first, lane = static_cast<int32_t>(threadIdx.x) % 2;
    int32_t* const to = a.chosen + row * a.all_slots() + a.first;
    if (a.first > 0 && lane == 0) to[-1] = document < range.high ? 0 : -1;
#pragma unroll
    for (int i = 0; i < kSlots; ++i)
        if (i < a.slots && i % 2 == lane) to[i] = blocks[i] == INT32_MAX ? -1 : blocks[i] - document;
}

/// A consumer warp: top k of 16 of the 64 rows of its warpgroup.
template <int D, int kSlots, bool kSummed, class Shared>
__device__ void select(TileArgs const& a, Shared& shared) {
    int const thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp_row = thread / 32 * 16;
    TopKRows<kSlots> best(shared.laid[thread / 32]);
    uint32_t const means = shared_address(shared.means);
    int const first_row = warp_row + lane / 4;
    auto const range_of = [&](int its_row, int32_t queries) {
        int const query = shared.query_of[its_row];
        return query < queries ? shared.range[query] : Range{0, -1};  // no row there
    };
    int const rows_of_query = kSummed ? 1 : a.group;
    constexpr int kSteps = D / 16;
    RingPosition<Shared::kQueryStages> rows;
    RingPosition<kStages> ring;
    for (auto item = static_cast<int32_t>(blockIdx.x); item < a.tiles * a.kv_heads; item += gridDim.x) {
        shared.q_full[rows.stage].wait(rows.parity());
        TileInfo const tile = uniform(shared.tile_info);
        auto const load_queries = [&](uint32_t(&to)[kSteps][4]) {
            hopper::load_left<Shared::kRows>(to, shared_address(shared.q[rows.stage]), warp_row);
        };
        auto const release_queries = [&] {
            shared.q_free[rows.stage].arrive();
            rows.advance();
        };
        uint32_t q[kSummed ? 2 * kSteps : kSteps][4];
        if constexpr (!kSummed) load_queries(q);
        Range const range[2] = {range_of(first_row, tile.count), range_of(first_row + 8, tile.count)};
        if constexpr (kSummed) {
            SumOfHeads<kSteps> sum;
            for (int32_t h = 0; h < a.group; ++h, release_queries()) {
                if (h > 0) shared.q_full[rows.stage].wait(rows.parity());
                uint32_t its[kSteps][4];
                load_queries(its);
                sum.add(its);
            }
            sum.split(q);
        } else {
            release_queries();
        }

        uint32_t const rows_there = (range[0].high > 0 ? 0x33333333u : 0) | (range[1].high > 0 ? 0xccccccccu : 0);
        // Of the lane's two rows of scores it keeps the top k of one.
        best.begin(a.slots, (lane / 2 % 2 == 0 ? range[0] : range[1]).high >= 0);

        for (int32_t step = 0; step < tile.steps; ++step, ring.advance()) {
            float s[32];
            shared.full[ring.stage].wait(ring.parity());
            uint32_t const stage = means + ring.stage * hopper::tile_bytes<kStepBlocks, D>();
            hopper::add_products<Inner::columns>(
                s, q, [&](int step) { return hopper::columns_factor<kStepBlocks>(stage, 0, step % kSteps); }, false);
            hopper::products_wait<0>();
            hopper::pin(s);
            if (lane == 0) shared.free[ring.stage].arrive();
            int32_t const from = tile.end - (step + 1) * kStepBlocks;
            uint32_t valid = rows_there;
            if (from < tile.always.low || from + kStepBlocks + a.force_previous > tile.always.high) {
                uint32_t const first = candidates_of(tile.alike ? tile.always : range[0], from);
                valid &= first | (tile.alike ? first : candidates_of(range[1], from)) << 2;
                if (best.unfilled()) erase_others(s, valid);
                if (a.force_previous) force_previous(s, range, from);
            }
            best.offer(s, valid, from);
        }

        int32_t blocks[kSlots];
        best.finish(blocks);
        if (best.there()) {
            // Once a tile: what is not kept leaves registers to the steps.
            int const again = static_cast<int>(hopper::thread_anew()), second = again / 2 % 2;
            int const row = again / 32 * 16 + again % 32 / 4 + second * 8;
            int64_t const at = int64_t{tile.query} * a.heads + tile.g * a.group +
                               shared.query_of[row] * (a.heads - rows_of_query) + row;
            for (int32_t h = 0; h < (kSummed ? a.group : 1); ++h)
                write_selection(blocks, a, second != 0 ? range[1] : range[0], at + h);
        }
    }
}

/// Registers of a thread that chooses, by the number of warpgroups that do. One more brings, with what is left of those
/// that a launch gives out: 128 for each of 512 threads, 96 for 640.
template <int kWarpgroups>
constexpr int kRegisters = kWarpgroups == 4 ? 104 : (512 - 56) / kWarpgroups / 8 * 8;

template <int D, int kSlots, int kWarpgroups, bool kSummed>
__global__ void __launch_bounds__(128 * (kWarpgroups + 1), 1) gate_kernel(__grid_constant__ TileArgs const a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    start_early();
    using Shared = GateShared<D, kSlots, kWarpgroups, kSummed>;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared*>(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < Shared::kQueryStages; ++i) {
            shared.q_full[i].init(32);  // by every lane: racecheck follows no lane's numbers to another's arrival
            shared.q_free[i].init(128 * kWarpgroups);
        }
        for (int i = 0; i < kStages; ++i) {
            shared.full[i].init(1);
            shared.free[i].init(4 * kWarpgroups);
        }
        hopper::publish_barriers();
    }
    if (threadIdx.x < Shared::kRows)
        shared.query_of[threadIdx.x] = static_cast<uint8_t>(threadIdx.x / (kSummed ? 1 : a.group));
    __syncthreads();
    if (threadIdx.x < 128 * kWarpgroups) {
        hopper::take_registers<kRegisters<kWarpgroups>>();
        select<D, kSlots, kSummed>(a, shared);
    } else {
        hopper::give_registers_up<56>();
        if (threadIdx.x < 128 * kWarpgroups + 32) bring<D, kSummed>(a, shared);
    }
#endif
}

template <int D, int kSlots, int kWarpgroups, bool kSummed>
void launch_gate(Stage const& stage, int32_t* chosen) {
    BlockSparseShape const& s = stage.plan.shape;
    GateArgs const args = gate_args(stage, chosen);
    int32_t const heads = kSummed ? 1 : args.group;  // that come at once
    int32_t const tile_queries = 64 * kWarpgroups / heads;
    int32_t const tiles = (args.queries + tile_queries - 1) / tile_queries;
    auto const centroids = hopper::rows_map(args.centroids, stage.plan.blocks, s.kv_heads, D, kStepBlocks);
    launch({.name = "gate",
            .grid = {std::min(tiles * s.kv_heads, multiprocessors())},
            .threads = 128 * (kWarpgroups + 1),
            .shared_bytes = sizeof(GateShared<D, kSlots, kWarpgroups, kSummed>),
            .stream = stage.problem.stream,
            .early = true},
           gate_kernel<D, kSlots, kWarpgroups, kSummed>,
           TileArgs{args, hopper::rows_map(args.q, s.queries, s.heads, D, tile_queries, heads), centroids, tile_queries,
                    tiles});
}

}  // namespace

void select_blocks_sm90(Stage const& stage, int32_t* chosen) {
    with_sm90_head_dim(stage.plan.shape.head_dim, [&]<int D>() {
        int64_t const slots = stage.plan.shape.slots() - stage.plan.options.force_first;
        auto const of_rows = [&]<bool kSummed>() {
            constexpr int kMost = kSummed && D == 128 ? 3 : 4;  // two factors of 128 columns take more registers
            if (slots <= 2)
                launch_gate<D, 2, kMost, kSummed>(stage, chosen);
            else if (slots <= 7)
                launch_gate<D, 7, kMost, kSummed>(stage, chosen);
            else
                launch_gate<D, 15, 2, kSummed>(stage, chosen);
        };
        if (gate_args(stage).summed > 1)
            of_rows.template operator()<true>();
        else
            of_rows.template operator()<false>();
    });
}

}  // namespace perigee::moba_gate
