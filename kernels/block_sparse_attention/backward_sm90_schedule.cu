// Work items of the sm90 backward, from the routing: splits of about split_rows query rows, so that a block that
// everybody selected is spread over all multiprocessors. Splits follow from the routing alone.
#include "kernels/block_sparse_attention/backward_sm90.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/common/scan.cuh"

namespace perigee::block_sparse {
namespace {

constexpr float kFirstSplits = 4;  ///< times as large as the last: half of a multiprocessor's share of the work

/// What the keys of one block meet in a pass.
struct BlockWork {
    Block block;
    int32_t indices;  ///< of the first routed row
    int32_t count;    ///< of routed rows
    int32_t kv_tiles;
    int32_t splits;  ///< per KV tile; where several, each leaves sums to add
    int32_t items;   ///< in whole tile groups
};

__device__ int32_t local_begin(AttentionArgs const& a, int32_t key) { return max(key, a.query_begin + a.pass_begin); }
__device__ int32_t local_rows(AttentionArgs const& a, Block const& block) {
    return max(min(block.end, a.query_begin + a.pass_end) - local_begin(a, block.begin), 0) * a.group;
}

/// Splits need be small only at the pass's end, for all multiprocessors to end together; larger ones before save sums.
/// What is left of the pass is estimated from heads and tokens.
__device__ int64_t rows_of_split(BackwardArgs const& f, int32_t head, int32_t begin) {
    float const tokens = static_cast<float>(f.query_begin + f.pass_end);
    float const left = static_cast<float>(f.pass_heads - head) - static_cast<float>(begin) / tokens;
    float const times = kFirstSplits * left / static_cast<float>(f.pass_heads);
    return static_cast<int64_t>(static_cast<float>(f.split_rows) * fmaxf(times, 1));
}

__device__ BlockWork work_of_block(BackwardArgs const& f, int32_t head, int32_t index) {
    int64_t const g = f.head + head;
    BlockWork x{};
    x.block = f.blocks[index];
    x.kv_tiles = (x.block.end - x.block.begin + kKvTile - 1) / kKvTile;
    if (x.kv_tiles == 0 || x.block.begin >= f.later) return x;
    if (f.slots > 0) {
        int32_t const before = starts_of_chunk(f, g, f.chunk)[index];
        x.indices = f.offsets[g * (f.capacity + 1) + index] + before;
        x.count = starts_of_chunk(f, g, f.end_chunk)[index] - before;
    }
    int32_t const query_rows = local_rows(f, x.block) + x.count;
    // A KV tile that no row sees still has to write zeros, unless sums of it exist.
    bool const summed = x.block.begin < f.earlier || (f.add_to_dkv && !f.carry);
    int64_t const rows = rows_of_split(f, head, x.block.begin);
    x.splits = query_rows == 0 && summed ? 0 : max(static_cast<int32_t>((query_rows + rows / 2) / rows), 1);
    x.items = (x.kv_tiles + f.tile_group - 1) / f.tile_group * f.tile_group * x.splits;
    return x;
}

__global__ void __launch_bounds__(kScanThreads) count_work_items(BackwardArgs const f) {
    auto const head = static_cast<int32_t>(blockIdx.x);
    int64_t const at = int64_t{head} * (f.capacity + 1);
    exclusive_scan(
        f.capacity, [&](int b) { return work_of_block(f, head, b).items; }, f.item_begin + at);
    exclusive_scan(
        f.capacity,
        [&](int b) {
            BlockWork const x = work_of_block(f, head, b);
            return x.splits > 1 ? x.kv_tiles * x.splits : 0;
        },
        f.split_begin + at);
}

/// Which query rows an item takes. The rows that see a block are numbered: its routed rows, x.count of them, then its
/// local rows. Tiles of kKvTile rows are dealt to the splits in order. With 300 routed and 512 local rows that is 7
/// tiles; of two splits the first takes rows [0, 384), the second [384, 812).
/// The cuts are those of the block's first KV tile, so that all KV tiles of a tile group share their rows. A later KV
/// tile leaves out the local rows before it, in multiples of kKvTile: the others keep their place in the query tile.
__device__ void cut_split(AttentionArgs const& a, BlockWork const& x, int32_t split, WorkItem& item) {
    int32_t const local_first = local_begin(a, x.block.begin), local_all = local_rows(a, x.block);
    int32_t const left_out = min(max(item.key - local_first, 0) / kKvTile * kKvTile * a.group, local_all);
    item.local_token = local_first + left_out / a.group;
    item.local_row = (item.local_token - a.query_begin) * a.group;
    int64_t const query_rows = int64_t{x.count} + local_all, tiles = (query_rows + kKvTile - 1) / kKvTile;
    auto const cut = [&](int32_t i) {
        auto const at = static_cast<int32_t>(min(tiles * i / x.splits * kKvTile, query_rows));
        return at <= x.count ? at : max(at - left_out, x.count);
    };
    item.first = cut(split);
    item.begin = item.first / kKvTile * kKvTile;
    item.end = cut(split + 1);
    if (item.first == item.end) item.begin = item.end;
    int32_t const local = local_all - left_out;
    bool const part = item.key_end - item.key < kKvTile;
    item.masked = part ? 0 : x.count;
    item.masked_end = part ? INT_MAX : x.count + min(max(item.key_end - 1 - item.local_token, 0) * a.group, local);
}

/// One warp per (block, head). KV tiles go fastest: neighbouring items share their rows.
__global__ void __launch_bounds__(256) fill_work_items(BackwardArgs const f) {
    auto const index = static_cast<int32_t>(blockIdx.x * 8 + threadIdx.x / 32);
    auto const head = static_cast<int32_t>(blockIdx.y);
    int const lane = threadIdx.x % 32;
    int32_t items = 0, splits = 0;  // before this head
    for (int32_t h = 0; h < head; ++h) {
        items += f.item_begin[int64_t{h + 1} * (f.capacity + 1) - 1];
        splits += f.split_begin[int64_t{h + 1} * (f.capacity + 1) - 1];
    }
    if (index == 0 && head == f.pass_heads - 1 && lane == 0) {
        f.counters[0] = items + f.item_begin[int64_t{head + 1} * (f.capacity + 1) - 1];
        f.counters[1] = 0;
    }
    if (index >= f.capacity) return;
    BlockWork const x = work_of_block(f, head, index);
    int64_t const at = int64_t{head} * (f.capacity + 1) + index;
    items += f.item_begin[at];
    splits += f.split_begin[at];
    int32_t const of_split = x.splits == 0 ? 0 : x.items / x.splits;
    for (int32_t i = lane; i < x.items; i += 32) {
        int32_t const kv_tile = i % of_split, split = i / of_split;
        WorkItem item{};
        item.g = f.head + head;
        item.key = x.block.begin + kv_tile * kKvTile;
        item.key_end = min(x.block.end, item.key + kKvTile);
        item.indices = x.indices;
        item.routed = x.count;
        item.first_slot =
            static_cast<int32_t>((int64_t{head} * f.pass_rows - int64_t{f.pass_begin} * f.group) * f.row_slots +
                                 kv_tile / f.tile_group);  // modulo 2^32
        item.flags = (kv_tile % f.tile_group != 0 ? kAddToPartial : 0) |
                     (x.block.begin < f.earlier && x.splits <= 1 ? kAddToSums : 0) |
                     (kv_tile < f.tile_group ? kFirstTileGroup : 0);
        if (kv_tile < x.kv_tiles)
            cut_split(f, x, split, item);
        else
            item.end = kFiller;
        item.sums = x.splits > 1 ? f.carried_tiles + splits + kv_tile * x.splits + split
                    : f.carry    ? carried_slot(f, index, item.key)
                                 : -1;
        f.items[items + i] = item;
    }
}

}  // namespace

BackwardArgs backward_args(Stage const& stage, Pass const& pass, BlockSparseGradients const& gradients) {
    BlockSparsePlan const& plan = stage.plan;
    BackwardArgs f{attention_args(stage, pass, gradients)};
    f.kv_tiles = static_cast<int32_t>(plan.kv_tiles);
    f.tile_group = static_cast<int32_t>(plan.tile_group);
    f.tile_groups = static_cast<int32_t>(plan.kv_tiles / plan.tile_group);
    f.row_slots = static_cast<int32_t>(plan.row_slots);
    f.split_rows = static_cast<int32_t>(plan.split_rows);
    f.inverse_group = f.group == 1 ? 0 : static_cast<uint32_t>((int64_t{1} << 32) / f.group + 1);
    f.whole_kv_tiles = plan.whole_kv_tiles();
    f.score_of_base = -1 / (f.scale * kernels::kLog2e);
    f.carry = plan.pass_chunks < plan.chunks;
    f.carried_tiles = static_cast<int32_t>(plan.carried_tiles);
    f.carry_out = pass.chunk + pass.chunks < plan.chunks;
    f.earlier = pass.chunk > 0 ? f.query_begin + f.pass_begin : INT_MIN;
    f.later = f.carry_out ? f.query_begin + f.pass_end : INT_MAX;
    return f;
}

void schedule_work_items(Stage const& stage, Pass const& pass) {
    BackwardArgs const args = backward_args(stage, pass, {});
    launch({.name = "count_work_items", .grid = {pass.heads}, .threads = kScanThreads, .stream = stage.problem.stream},
           count_work_items, args);
    launch({.name = "fill_work_items",
            .grid = {ceil_div(stage.plan.blocks, 8), pass.heads},
            .threads = 256,
            .stream = stage.problem.stream},
           fill_work_items, args);
}

}  // namespace perigee::block_sparse
