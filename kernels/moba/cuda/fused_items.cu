// The items of the fused backward, from the lists' lengths: pieces of at most piece_rows visitors, so that a block that
// everybody chose is spread over all multiprocessors. Where they are cut follows from the lists alone.
#include "kernels/moba/cuda/fused.cuh"
#include "kernels/moba/cuda/launch.cuh"

namespace perigee::moba {
namespace {

/// What the keys of one block meet in a wave.
struct BlockVisits {
    Block block;
    int32_t list;   ///< first listed row, in the head's list
    int32_t count;  ///< of listed rows
    int32_t runs;
    int32_t pieces;  ///< of every run
};

__device__ int32_t own_begin(AttentionArgs const& a, int32_t key) { return max(key, a.query_begin + a.wave_begin); }
__device__ int32_t own_rows(AttentionArgs const& a, Block const& block, int32_t key) {
    return max(min(block.end, a.query_begin + a.wave_end) - own_begin(a, key), 0) * a.group;
}

__device__ BlockVisits visits_of(FusedArgs const& f, int32_t head, int32_t index) {
    AttentionArgs const& a = f.a;
    int64_t const g = a.head + head;
    BlockVisits x{};
    x.block = a.blocks[index];
    x.runs = (x.block.end - x.block.begin + kItemKeys - 1) / kItemKeys;
    if (x.runs == 0) return x;
    if (a.slots > 0) {
        int32_t const* const ends = a.places + (g * a.capacity + index) * a.chunks;
        int32_t const before = a.chunk > 0 ? ends[a.chunk - 1] : 0;
        x.list = a.list_begin[g * (a.capacity + 1) + index] + before;
        x.count = ends[a.end_chunk - 1] - before;
    }
    int32_t const visitors = own_rows(a, x.block, x.block.begin) + x.count;
    // Where sums are carried along, a run that nobody visits needs work only to be finished.
    x.pieces = visitors == 0 && f.carry_out && f.carry_in ? 0 : max((visitors + f.piece_rows - 1) / f.piece_rows, 1);
    return x;
}

__global__ void __launch_bounds__(kScanThreads) count_items(FusedArgs const f) {
    auto const head = static_cast<int32_t>(blockIdx.x);
    int64_t const at = int64_t{head} * (f.a.capacity + 1);
    exclusive_scan(
        f.a.capacity,
        [&](int b) {
            BlockVisits const x = visits_of(f, head, b);
            return x.runs * x.pieces;
        },
        f.item_begin + at);
    exclusive_scan(
        f.a.capacity,
        [&](int b) {
            BlockVisits const x = visits_of(f, head, b);
            return x.pieces > 1 ? x.runs * x.pieces : 0;
        },
        f.piece_begin + at);
}

/// One warp per (block, head). Neighbours in the list of items share their rows: runs of keys go fastest.
__global__ void __launch_bounds__(256) fill_items(FusedArgs const f) {
    AttentionArgs const& a = f.a;
    auto const index = static_cast<int32_t>(blockIdx.x * 8 + threadIdx.x / 32);
    auto const head = static_cast<int32_t>(blockIdx.y);
    int const lane = threadIdx.x % 32;
    int32_t items = 0, pieces = 0;  // before this head
    for (int32_t h = 0; h < head; ++h) {
        items += f.item_begin[int64_t{h + 1} * (a.capacity + 1) - 1];
        pieces += f.piece_begin[int64_t{h + 1} * (a.capacity + 1) - 1];
    }
    if (index == 0 && head == f.wave_heads - 1 && lane == 0) {
        f.counters[0] = items + f.item_begin[int64_t{head + 1} * (a.capacity + 1) - 1];
        f.counters[1] = 0;
    }
    if (index >= a.capacity) return;
    BlockVisits const x = visits_of(f, head, index);
    int64_t const at = int64_t{head} * (a.capacity + 1) + index;
    items += f.item_begin[at];
    pieces += f.piece_begin[at];
    for (int32_t i = lane; i < x.runs * x.pieces; i += 32) {
        int32_t const run = i % x.runs, piece = i / x.runs;
        Item item{};
        item.g = a.head + head;
        item.key = x.block.begin + run * kItemKeys;
        item.key_end = min(x.block.end, item.key + kItemKeys);
        item.own_token = own_begin(a, item.key);
        item.own_row = (item.own_token - a.query_begin) * a.group;
        item.list = x.list;
        item.listed = x.count;
        int32_t const own = own_rows(a, x.block, item.key);
        bool const part = item.key_end - item.key < kItemKeys;
        item.masked = part ? 0 : x.count;
        item.masked_end = part ? INT_MAX : x.count + min(max(item.key_end - 1 - item.own_token, 0) * a.group, own);
        int64_t const visitors = x.count + own, tiles = (visitors + 127) / 128;
        item.begin = static_cast<int32_t>(tiles * piece / x.pieces * 128);
        item.end = static_cast<int32_t>(min(tiles * (piece + 1) / x.pieces * 128, visitors));
        item.first_slot = static_cast<int32_t>(
            (int64_t{head} * a.wave_rows - int64_t{a.wave_begin} * a.group) * f.row_slots + run);  // modulo 2^32
        item.piece = x.pieces > 1 ? pieces + run * x.pieces + piece : -1;
        item.place = place_of_run(index, item.key);
        f.items[items + i] = item;
    }
}

}  // namespace

FusedArgs fused_args(Stage const& stage, Wave const& wave, MobaGradients const& gradients) {
    MobaPlan const& plan = stage.plan;
    Scratch const& s = stage.scratch;
    FusedArgs f{};
    f.a = attention_args(stage, wave);
    f.a.d_o = gradients.d_o;
    f.a.o = gradients.o;
    f.a.lse = gradients.lse;
    f.a.dq = gradients.dq;
    f.a.dk = gradients.dk;
    f.a.dv = gradients.dv;
    f.a.add_to_dkv = gradients.add_to_dkv;
    f.items = static_cast<Item*>(s.items);
    f.item_begin = s.item_begin;
    f.piece_begin = s.piece_begin;
    f.counters = s.counters;
    f.pieces = reinterpret_cast<float4*>(s.pieces);
    f.carried = reinterpret_cast<float4*>(s.carried);
    f.wave_heads = static_cast<int32_t>(wave.heads);
    f.runs = static_cast<int32_t>(plan.runs);
    f.row_slots = static_cast<int32_t>(plan.row_slots);
    f.piece_rows = static_cast<int32_t>(plan.piece_rows);
    f.inverse_group = f.a.group == 1 ? 0 : static_cast<uint32_t>((int64_t{1} << 32) / f.a.group + 1);
    f.carry_in = wave.chunk > 0;
    f.carry_out = wave.chunk + wave.chunks < plan.chunks;
    return f;
}

void plan_items(Stage const& stage, Wave const& wave) {
    FusedArgs const args = fused_args(stage, wave, {});
    launch({"count_items", wave.heads, 1, kScanThreads, 0, stage.problem.stream}, count_items, args);
    launch({"fill_items", ceil_div(stage.plan.blocks, 8), wave.heads, 256, 0, stage.problem.stream}, fill_items, args);
}

}  // namespace perigee::moba
