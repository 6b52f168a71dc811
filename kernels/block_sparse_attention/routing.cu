// Inverts a selection (query -> blocks) to CSR (block -> query rows) per kv head: count, scan, and a fill that sorts
// tiles of rows in shared memory. Entries come out in order whatever the timing.
#include <algorithm>

#include "kernels/block_sparse_attention/routing.cuh"
#include "kernels/common/arrivals.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/common/scan.cuh"

namespace perigee::block_sparse {
namespace {

constexpr int kCountRange = 8192;  // blocks whose counters a thread block holds
constexpr int kLoadSteps = 4;      // of rows whose choices are on their way at a time

/// Entries of each (chunk, block).
template <int kPairs>
__global__ void __launch_bounds__(1024, 2) count_entries(RoutingArgs const a) {
    start_early();
    extern __shared__ int32_t counts[];
    int const thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    auto const chunk = static_cast<int32_t>(blockIdx.y);
    RoutingRange const p = part_of(a, chunk, 1, kCountRange);
    int32_t const width = p.high - p.low;
    if (chunk == 0 && thread == 0) a.arrived[p.g] = 0;
    for (int b = thread; b < width; b += threads) counts[b] = 0;
    __syncthreads();
    BatchCursor walk(a, p.begin + thread / 2, threads / 2);
    for (int32_t begin = p.begin; begin < (width > 0 ? p.end : p.begin); begin += threads / 2 * kLoadSteps) {
        int32_t block[kLoadSteps][kPairs];
        load_selection<kLoadSteps>(a, p, walk, p.end, block);
#pragma unroll
        for (int step = 0; step < kLoadSteps; ++step)
#pragma unroll
            for (int i = 0; i < kPairs; ++i)
                if (block[step][i] >= 0) atomicAdd(&counts[block[step][i]], 1);
    }
    __syncthreads();
    int32_t* const out = starts_of_chunk(a, p.g, chunk);
    int32_t const range = static_cast<int32_t>(blockIdx.z) * kCountRange, end = min(range + kCountRange, a.capacity);
    for (int32_t b = range + thread; b < end; b += threads) out[b] = b >= p.low && b < p.high ? counts[b - p.low] : 0;
}

constexpr int kScanBlocks = 32;                                // of a thread block, one for each lane
constexpr int kScanChunks = kMaxChunks / (kScanThreads / 32);  // at most, of a warp

/// Turns counts per chunk into the begin of each chunk in its block's entries. The last thread block of a kv head scans
/// the blocks' totals into `offsets`.
__global__ void __launch_bounds__(kScanThreads, 2) scan_routing(RoutingArgs const a) {
    start_early();
    constexpr int kWarps = kScanThreads / 32;
    __shared__ int32_t of_warp[kWarps][kScanBlocks + 1];
    int const thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    int32_t const first = static_cast<int32_t>(blockIdx.x) * kScanBlocks;
    int64_t const g = blockIdx.y;
    bool const there = first + lane < a.capacity;
    int32_t* const counts = starts_of_chunk(a, g, 0) + first + lane;
    int32_t count[kScanChunks], sum = 0;
#pragma unroll
    for (int i = 0; i < kScanChunks; ++i) {
        int const chunk = warp * kScanChunks + i;
        count[i] = there && chunk < a.chunks ? counts[int64_t{chunk} * a.capacity] : 0;
    }
#pragma unroll
    for (int i = 0; i < kScanChunks; ++i) sum += count[i];
    of_warp[warp][lane] = sum;
    __syncthreads();
    int32_t const sums = warp_inclusive_scan(of_warp[lane][warp], lane);  // of block `warp`
    __syncthreads();
    of_warp[lane][warp] = sums;
    __syncthreads();
    int32_t at = warp > 0 ? of_warp[warp - 1][lane] : 0;
    if (there && warp == 0) counts[int64_t{a.chunks} * a.capacity] = of_warp[kWarps - 1][lane];
#pragma unroll
    for (int i = 0; i < kScanChunks; ++i) {
        int const chunk = warp * kScanChunks + i;
        if (there && chunk < a.chunks) counts[int64_t{chunk} * a.capacity] = at;
        at += count[i];
    }
    int32_t const* const totals = starts_of_chunk(a, g, a.chunks);
    if (last_to_arrive(a.arrived + g, gridDim.x))
        exclusive_scan(
            a.capacity, [&](int b) { return __ldcg(totals + b); }, a.offsets + g * (a.capacity + 1));
}

constexpr int kFillThreads = 256;
constexpr int kFillWarps = kFillThreads / 32;
constexpr int kFillSteps = 8;                            // of 16 rows of a warp
constexpr int kTileRows = kFillWarps * kFillSteps * 16;  // that are sorted at a time
constexpr int kBlocksPerThread = 4;                      // neighbouring blocks that a thread looks after
static_assert(kBlocksPerThread * kFillThreads == kFillRange);

// A fill sorts a tile of rows by block, in three phases. What its 32-bit words hold in each:
//
//   rank()          of a warp and block   entries so far << 16 | which of the step's 16 rows chose the block
//                   of a slot             block << 16 | position among the entries of its warp and block
//   begin_warps()   of a warp and block   position in the sorted tile at which the warp's entries begin
//   sort_entries()  of the sorted tile    block << 16 | batch of the tile << 6 | slot of the batch

/// Shared memory of a fill.
template <int kPairs>
struct FillShared {
    union {
        uint32_t words[kFillWarps][kFillRange];
        uint32_t sorted[kTileRows * 2 * kPairs];
    };
    int32_t shift[kFillRange];  ///< from an entry's position in the sorted tile to that in `indices`
    int32_t of_warp[kFillWarps];
};

/// Turns the blocks of a step into block << 16 | the entry's position among those of its warp and block.
template <int kPairs>
__device__ __forceinline__ void rank(int32_t (&block)[kPairs], uint32_t* words) {
    int const row = static_cast<int>(threadIdx.x) % 32 / 2;
    uint32_t word[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
        if (block[i] >= 0) atomicOr(&words[block[i]], 1u << row);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kPairs; ++i) word[i] = block[i] >= 0 ? words[block[i]] : 0;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
        bool const last = (word[i] & 0xffff) >> row == 1;  // of these rows that chose the block
        uint32_t const position = (word[i] >> 16) + static_cast<uint32_t>(__popc(word[i] & ((1u << row) - 1)));
        if (last) words[block[i]] = (position + 1) << 16;
        block[i] = block[i] < 0 ? -1 : static_cast<int32_t>(static_cast<uint32_t>(block[i]) << 16 | position);
    }
    __syncwarp();
}

/// Turns the counts of warps into where their entries begin in the sorted tile, by threads that look after
/// kBlocksPerThread neighbouring blocks each, and moves those blocks' `start` on. Returns the tile's entries.
template <int kPairs>
__device__ int32_t begin_warps(FillShared<kPairs>& shared, int32_t width, int32_t (&start)[kBlocksPerThread]) {
    int const thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    auto* const words = reinterpret_cast<uint4*>(&shared.words[0][kBlocksPerThread * thread]);
    bool const there = kBlocksPerThread * thread < width;
    uint32_t count[kBlocksPerThread] = {};  // in upper halves
    if (there)
#pragma unroll 2
        for (int w = 0; w < kFillWarps; ++w) {
            uint4 const of_warp = words[w * (kFillRange / kBlocksPerThread)];
            count[0] += of_warp.x, count[1] += of_warp.y, count[2] += of_warp.z, count[3] += of_warp.w;
        }
    uint32_t const all = (count[0] >> 16) + (count[1] >> 16) + (count[2] >> 16) + (count[3] >> 16);
    int32_t const in_warp = warp_inclusive_scan(static_cast<int32_t>(all), lane);
    if (lane == 31) shared.of_warp[thread / 32] = in_warp;
    __syncthreads();
    int32_t const warps = warp_inclusive_scan(lane < kFillWarps ? shared.of_warp[lane] : 0, lane);
    int32_t const before = __shfl_sync(kAllLanes, warps, max(thread / 32 - 1, 0));
    if (there) {
        uint4 at;
        at.x = static_cast<uint32_t>((thread >= 32 ? before : 0) + in_warp) - all;
        at.y = at.x + (count[0] >> 16), at.z = at.y + (count[1] >> 16), at.w = at.z + (count[2] >> 16);
        auto const shift = [&](int i, uint32_t from) { return start[i] - static_cast<int32_t>(from); };
        *reinterpret_cast<int4*>(&shared.shift[kBlocksPerThread * thread]) = {shift(0, at.x), shift(1, at.y),
                                                                              shift(2, at.z), shift(3, at.w)};
#pragma unroll
        for (int i = 0; i < kBlocksPerThread; ++i) start[i] += static_cast<int32_t>(count[i] >> 16);
#pragma unroll 2
        for (int w = 0; w < kFillWarps; ++w) {
            uint4 const of_warp = words[w * (kFillRange / kBlocksPerThread)];
            words[w * (kFillRange / kBlocksPerThread)] = at;
            at.x += of_warp.x >> 16, at.y += of_warp.y >> 16, at.z += of_warp.z >> 16, at.w += of_warp.w >> 16;
        }
    }
    return __shfl_sync(kAllLanes, warps, kFillWarps - 1);
}

/// Ranked entries of this lane's batches, from `batch` of the tile on, go to their positions in the sorted tile, which
/// takes the room of the words. All threads call; the tile is whole afterwards.
template <int kPairs>
__device__ __forceinline__ void sort_entries(int32_t (&block)[kFillSteps][kPairs], uint32_t const* words,
                                             uint32_t* sorted, int first) {
#pragma unroll
    for (int step = 0; step < kFillSteps; ++step)
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
            int32_t& entry = block[step][i];
            if (entry >= 0) entry += static_cast<int32_t>(words[entry >> 16]);
        }
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kFillSteps; ++step) {
        int const key = first + (step * 16 << 6);
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
            auto const entry = static_cast<uint32_t>(block[step][i]);
            if (block[step][i] >= 0) sorted[entry & 0xffff] = (entry & 0xffff0000) | static_cast<uint32_t>(key + 2 * i);
        }
    }
    __syncthreads();
}

/// From batch << 6 | slot of the batch to row << 6 | slot.
__device__ __forceinline__ uint32_t of_batch(RoutingArgs const& a, uint32_t entry) {
    auto const batches = static_cast<uint32_t>(a.batches);
    uint32_t const row = (entry >> 6) / batches, batch = (entry >> 6) - row * batches;
    return row << 6 | (batch * static_cast<uint32_t>(a.batch_slots) + (entry & 63));
}

template <int kPairs>
__global__ void __launch_bounds__(kFillThreads, 3) fill_routing(RoutingArgs const a) {
    start_early();
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<FillShared<kPairs>*>(memory);
    int const thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    RoutingRange const p = part_of(a, static_cast<int32_t>(blockIdx.y) * a.part_chunks, a.part_chunks, kFillRange);
    int32_t const width = p.high - p.low;
    if (width <= 0) return;
    int32_t start[kBlocksPerThread];  // in the routing, of the tile
    int64_t const first_block = p.low + kBlocksPerThread * thread;
    int32_t const* const begin = a.offsets + int64_t{p.g} * (a.capacity + 1) + first_block;
    int32_t const* const from = starts_of_chunk(a, p.g, static_cast<int32_t>(blockIdx.y) * a.part_chunks) + first_block;
#pragma unroll
    for (int i = 0; i < kBlocksPerThread; ++i)
        start[i] = kBlocksPerThread * thread + i < width ? begin[i] + from[i] : 0;
    uint32_t* const words = shared.words[warp];
    uint32_t* const indices = a.indices + p.g * a.indices_stride;
    int32_t const tile_rows = kTileRows / a.batches * a.batches;
    for (int32_t tile = p.begin; tile < p.end; tile += tile_rows) {
        int const in_tile = warp * kFillSteps * 16 + lane / 2;
        int32_t block[kFillSteps][kPairs];
        BatchCursor walk(a, tile + in_tile, 16);
#pragma unroll
        for (int step = 0; step < kFillSteps; step += kLoadSteps)
            load_selection<kLoadSteps>(a, p, walk, min(tile + tile_rows, p.end), block + step);
        for (int w = 0; w < kFillWarps; ++w)
            if (kBlocksPerThread * thread < width)
                *reinterpret_cast<uint4*>(&shared.words[w][kBlocksPerThread * thread]) = {0, 0, 0, 0};
        __syncthreads();
#pragma unroll
        for (int step = 0; step < kFillSteps; ++step) rank<kPairs>(block[step], words);
        __syncthreads();
        int32_t const entries = begin_warps(shared, width, start);
        __syncthreads();
        sort_entries<kPairs>(block, words, shared.sorted, in_tile << 6 | lane % 2);
        auto const first = static_cast<uint32_t>(tile / a.batches) << 6;
        for (int32_t i = thread; i < entries; i += kFillThreads) {
            uint32_t const key = shared.sorted[i], entry = key & 0xffff;
            indices[shared.shift[key >> 16] + i] = first + (a.batches == 1 ? entry : of_batch(a, entry));
        }
        __syncthreads();
    }
}

__global__ void __launch_bounds__(kScanThreads) count_tiles(RoutingArgs const a) {
    start_early();
    int64_t const g = a.head + blockIdx.x;
    int32_t const *const before = starts_of_chunk(a, g, a.chunk), *const after = starts_of_chunk(a, g, a.end_chunk);
    exclusive_scan(
        a.capacity, [&](int b) { return (after[b] - before[b] + a.row_tile - 1) / a.row_tile; },
        a.tiles + int64_t{blockIdx.x} * (a.capacity + 1));
}

RoutingArgs routing_args(Stage const& stage, Pass const& pass) {
    RoutingArgs args{attention_args(stage, pass)};
    args.chunk_queries = static_cast<int32_t>(stage.plan.chunk_queries);
    args.row_tile = static_cast<int32_t>(stage.plan.row_tile);
    args.batches = std::max((args.slots + kBatchSlots - 1) / kBatchSlots, 1);
    args.batch_slots = (args.slots + args.batches - 1) / args.batches;
    args.part_chunks = std::max(kTileRows / std::max(args.chunk_queries * args.group * args.batches, 1), 1);
    return args;
}

template <int kPairs>
void build_routing(Stage const& stage, RoutingArgs const& a) {
    cudaStream_t const stream = stage.problem.stream;
    int64_t const chunk_rows = int64_t{a.chunk_queries} * a.group * a.batches;
    auto const threads = static_cast<int>(std::clamp<int64_t>(ceil_div(chunk_rows, 2 * 32) * 32, 256, 1024));
    size_t const counters = sizeof(int32_t) * static_cast<size_t>(std::min(a.capacity, kCountRange));
    launch({.name = "count_entries",
            .grid = {a.kv_heads, a.chunks, ceil_div(a.capacity, kCountRange)},
            .threads = threads,
            .shared_bytes = counters,
            .stream = stream,
            .early = true},
           count_entries<kPairs>, a);
    launch({.name = "scan_routing",
            .grid = {ceil_div(a.capacity, kScanBlocks), a.kv_heads},
            .threads = kScanThreads,
            .stream = stream,
            .early = true},
           scan_routing, a);
    launch({.name = "fill_routing",
            .grid = {a.kv_heads, ceil_div(a.chunks, a.part_chunks), ceil_div(a.capacity, kFillRange)},
            .threads = kFillThreads,
            .shared_bytes = sizeof(FillShared<kPairs>),
            .stream = stream,
            .early = true},
           fill_routing<kPairs>, a);
}

}  // namespace

void build_routing(Stage const& stage) {
    RoutingArgs const args = routing_args(stage, {});
    if (args.batch_slots <= 2)
        build_routing<1>(stage, args);
    else if (args.batch_slots <= 4)
        build_routing<2>(stage, args);
    else
        build_routing<4>(stage, args);
}

void count_tiles(Stage const& stage, Pass const& pass) {
    launch({.name = "count_tiles",
            .grid = {pass.heads},
            .threads = kScanThreads,
            .stream = stage.problem.stream,
            .early = true},
           count_tiles, routing_args(stage, pass));
}

}  // namespace perigee::block_sparse
