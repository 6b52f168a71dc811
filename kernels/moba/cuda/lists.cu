// The choice turned around: for each (key/value head, block) the rows that chose it. Counting, running sums, and a fill
// in which one warp walks a chunk of queries in order, so that lists come out sorted whatever the timing.
#include "kernels/moba/cuda/block_scan.cuh"
#include "kernels/moba/cuda/launch.cuh"
#include "kernels/moba/cuda/stages.h"

namespace perigee::moba {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct ListArgs {
    int32_t const* chosen;
    Block const* blocks;
    int32_t const* block_of;
    int32_t* places;
    int32_t* totals;
    int32_t* list_begin;
    uint32_t* list;
    int32_t* tiles;
    int64_t list_stride;
    int32_t queries, query_begin, heads, kv_heads, slots, capacity, chunks, chunk_queries;
    int32_t head, chunk, end_chunk, row_tile;  ///< of a wave
    __device__ int32_t group() const { return heads / kv_heads; }
};

/// The block (of all documents) that `choice` of this query means, or -1.
__device__ int32_t chosen_block(ListArgs const& a, int32_t query, int32_t choice) {
    int32_t const own = a.block_of[a.query_begin + query], first = a.blocks[own].first;
    return choice >= 0 && choice < own - first ? first + choice : -1;
}

__global__ void __launch_bounds__(kThreads) count_entries(ListArgs const a) {
    int64_t const i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    int64_t const count = int64_t{a.queries} * a.heads * a.slots;
    int64_t place = -1;
    if (i < count) {
        auto const query = static_cast<int32_t>(i / (a.heads * a.slots));
        auto const h = static_cast<int32_t>(i / a.slots % a.heads);
        int32_t const block = chosen_block(a, query, a.chosen[i]);
        if (block >= 0) place = (int64_t{h / a.group()} * a.capacity + block) * a.chunks + query / a.chunk_queries;
    }
    unsigned const same = __match_any_sync(kAllLanes, place);
    if (place >= 0 && __ffs(static_cast<int>(same)) - 1 == static_cast<int>(threadIdx.x % 32))
        atomicAdd(a.places + place, __popc(same));
}

/// Turns the counts of a list's chunks into where each chunk begins in the list.
__global__ void __launch_bounds__(kThreads) sum_chunks(ListArgs const a) {
    int64_t const list = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
    if (list >= int64_t{a.kv_heads} * a.capacity) return;
    int const lane = threadIdx.x % 32;
    int32_t* const counts = a.places + list * a.chunks;
    int32_t carry = 0;
    for (int begin = 0; begin < a.chunks; begin += 32) {
        int const c = begin + lane;
        int32_t const x = c < a.chunks ? counts[c] : 0;
        int32_t const sum = warp_inclusive_scan(x, lane);
        if (c < a.chunks) counts[c] = carry + sum - x;
        carry += __shfl_sync(kAllLanes, sum, 31);
    }
    if (lane == 0) a.totals[list] = carry;
}

__global__ void __launch_bounds__(kScanThreads) sum_lists(ListArgs const a) {
    int64_t const g = blockIdx.x;
    int32_t const* const totals = a.totals + g * a.capacity;
    exclusive_scan(
        a.capacity, [&](int b) { return totals[b]; }, a.list_begin + g * (a.capacity + 1));
}

/// One warp per (chunk, key/value head). Afterwards `places` holds where each chunk ends.
__global__ void __launch_bounds__(kThreads) fill_lists(ListArgs const a) {
    int32_t const chunk = static_cast<int32_t>(blockIdx.x) * kWarps + static_cast<int32_t>(threadIdx.x / 32);
    if (chunk >= a.chunks) return;
    int const lane = threadIdx.x % 32;
    int64_t const g = blockIdx.y;
    int32_t const begin = chunk * a.chunk_queries, end = min(begin + a.chunk_queries, a.queries);
    int32_t const width = a.group() * a.slots;  // choices of a query
    int32_t const count = (end - begin) * width;
    int32_t const* const list_begin = a.list_begin + g * (a.capacity + 1);
    uint32_t* const list = a.list + g * a.list_stride;
    for (int32_t i0 = 0; i0 < count; i0 += 32) {
        int32_t const i = i0 + lane, query = begin + i / width, in_query = i % width;
        int32_t block = -1;
        if (i < count)
            block = chosen_block(a, query, a.chosen[(int64_t{query} * a.heads + g * a.group()) * a.slots + in_query]);
        unsigned const same = __match_any_sync(kAllLanes, block);
        int const leader = __ffs(static_cast<int>(same)) - 1;
        int32_t at = 0;
        if (block >= 0 && lane == leader) {
            int32_t* const place = a.places + (g * a.capacity + block) * a.chunks + chunk;
            at = *place;
            *place = at + __popc(same);
        }
        at = __shfl_sync(kAllLanes, at, leader);
        if (block >= 0) {
            int const rank = __popc(same & ((1u << lane) - 1));
            uint32_t const row = static_cast<uint32_t>(query) * a.group() + in_query / a.slots;
            list[list_begin[block] + at + rank] = row << 6 | static_cast<uint32_t>(in_query % a.slots);
        }
        __syncwarp();  // another lane may lead for this block next time
    }
}

__global__ void __launch_bounds__(kScanThreads) count_tiles(ListArgs const a) {
    int64_t const g = a.head + blockIdx.x;
    int32_t const* const ends = a.places + g * a.capacity * a.chunks;
    exclusive_scan(
        a.capacity,
        [&](int b) {
            int64_t const at = int64_t{b} * a.chunks;
            int32_t const before = a.chunk > 0 ? ends[at + a.chunk - 1] : 0;
            return (ends[at + a.end_chunk - 1] - before + a.row_tile - 1) / a.row_tile;
        },
        a.tiles + int64_t{blockIdx.x} * (a.capacity + 1));
}

ListArgs list_args(Stage const& stage, Wave const& wave) {
    MobaShape const& shape = stage.plan.shape;
    Scratch const& s = stage.scratch;
    auto const narrow = [](int64_t x) { return static_cast<int32_t>(x); };
    return {.chosen = stage.problem.chosen,
            .blocks = s.blocks,
            .block_of = s.block_of,
            .places = s.places,
            .totals = s.totals,
            .list_begin = s.list_begin,
            .list = s.list,
            .tiles = s.tiles,
            .list_stride = shape.places(),
            .queries = narrow(shape.queries),
            .query_begin = narrow(stage.problem.query_begin),
            .heads = narrow(shape.heads),
            .kv_heads = narrow(shape.kv_heads),
            .slots = narrow(shape.slots()),
            .capacity = narrow(stage.plan.blocks),
            .chunks = narrow(stage.plan.chunks),
            .chunk_queries = narrow(stage.plan.chunk_queries),
            .head = narrow(wave.head),
            .chunk = narrow(wave.chunk),
            .end_chunk = narrow(wave.chunk + wave.chunks),
            .row_tile = narrow(stage.plan.row_tile)};
}

}  // namespace

void build_lists(Stage const& stage) {
    ListArgs const args = list_args(stage, {});
    cudaStream_t const stream = stage.problem.stream;
    check_cuda(cudaMemsetAsync(args.places, 0, stage.plan.places.bytes, stream), "cudaMemsetAsync");
    int64_t const choices = int64_t{args.queries} * args.heads * args.slots;
    int64_t const lists = int64_t{args.kv_heads} * args.capacity;
    launch({"count_entries", ceil_div(choices, kThreads), 1, kThreads, 0, stream}, count_entries, args);
    launch({"sum_chunks", ceil_div(lists, kWarps), 1, kThreads, 0, stream}, sum_chunks, args);
    launch({"sum_lists", args.kv_heads, 1, kScanThreads, 0, stream}, sum_lists, args);
    launch({"fill_lists", ceil_div(args.chunks, kWarps), args.kv_heads, kThreads, 0, stream}, fill_lists, args);
}

void plan_tiles(Stage const& stage, Wave const& wave) {
    launch({"count_tiles", wave.heads, 1, kScanThreads, 0, stage.problem.stream}, count_tiles, list_args(stage, wave));
}

}  // namespace perigee::moba
