// The items of the fused backward, from the lists' lengths: pieces of at least piece_rows visitors, so that a block
// that everybody chose is spread over all multiprocessors. Where they are cut follows from the lists alone.
#include "kernels/moba/cuda/fused.cuh"
#include "kernels/moba/cuda/launch.cuh"

namespace perigee::moba {
namespace {

constexpr float kFirstPieces = 4;  ///< times as large as the last: half of a multiprocessor's share of the work

/// What the keys of one block meet in a wave.
struct BlockVisits {
    Block block;
    int32_t list;   ///< first listed row, in the head's list
    int32_t count;  ///< of listed rows
    int32_t runs;
    int32_t pieces;  ///< of every run
    int32_t dumps;   ///< of them, those that leave sums of their own
    int32_t items;   ///< in whole chains
};

__device__ int32_t own_begin(AttentionArgs const& a, int32_t key) { return max(key, a.query_begin + a.wave_begin); }
__device__ int32_t own_rows(AttentionArgs const& a, Block const& block) {
    return max(min(block.end, a.query_begin + a.wave_end) - own_begin(a, block.begin), 0) * a.group;
}

/// Pieces need be small only where the wave comes to its end, for all multiprocessors to end together; larger ones
/// before save sums that are written and read once more. What is left of the wave is guessed from heads and tokens.
__device__ int64_t rows_of_piece(FusedArgs const& f, int32_t head, int32_t begin) {
    float const tokens = static_cast<float>(f.a.query_begin + f.a.wave_end);
    float const left = static_cast<float>(f.wave_heads - head) - static_cast<float>(begin) / tokens;
    float const times = kFirstPieces * left / static_cast<float>(f.wave_heads);
    return static_cast<int64_t>(static_cast<float>(f.piece_rows) * fmaxf(times, 1));
}

__device__ BlockVisits visits_of(FusedArgs const& f, int32_t head, int32_t index) {
    AttentionArgs const& a = f.a;
    int64_t const g = a.head + head;
    BlockVisits x{};
    x.block = a.blocks[index];
    x.runs = (x.block.end - x.block.begin + kItemKeys - 1) / kItemKeys;
    if (x.runs == 0 || x.block.begin >= f.later) return x;
    if (a.slots > 0) {
        int32_t const* const ends = a.places + (g * a.capacity + index) * a.chunks;
        int32_t const before = a.chunk > 0 ? ends[a.chunk - 1] : 0;
        x.list = a.list_begin[g * (a.capacity + 1) + index] + before;
        x.count = ends[a.end_chunk - 1] - before;
    }
    int32_t const visitors = own_rows(a, x.block) + x.count;
    // A run that nobody visits needs work only where its sums are begun.
    bool const summed = f.shares_sums || x.block.begin < f.earlier || (a.add_to_dkv && !f.carry);
    int64_t const rows = rows_of_piece(f, head, x.block.begin);
    x.pieces = visitors == 0 && summed ? 0 : max(static_cast<int32_t>((visitors + rows / 2) / rows), 1);
    x.dumps = x.pieces > 1 && !f.shares_sums ? x.pieces : 0;
    x.items = (x.runs + f.chain - 1) / f.chain * f.chain * x.pieces;
    return x;
}

__global__ void __launch_bounds__(kScanThreads) count_items(FusedArgs const f) {
    auto const head = static_cast<int32_t>(blockIdx.x);
    int64_t const at = int64_t{head} * (f.a.capacity + 1);
    exclusive_scan(
        f.a.capacity, [&](int b) { return visits_of(f, head, b).items; }, f.item_begin + at);
    exclusive_scan(
        f.a.capacity,
        [&](int b) {
            BlockVisits const x = visits_of(f, head, b);
            return x.runs * x.dumps;
        },
        f.piece_begin + at);
}

/// A piece of a run. Pieces are cut from the visitors of the block's first run, so that all runs of a chain share their
/// rows. The own rows that do not see the run are left out, a multiple of kItemKeys of them: all others keep their
/// places in the tiles.
__device__ void cut_piece(AttentionArgs const& a, BlockVisits const& x, int32_t piece, Item& item) {
    int32_t const own_first = own_begin(a, x.block.begin), own_all = own_rows(a, x.block);
    int32_t const left_out = min(max(item.key - own_first, 0) / kItemKeys * kItemKeys * a.group, own_all);
    item.own_token = own_first + left_out / a.group;
    item.own_row = (item.own_token - a.query_begin) * a.group;
    int64_t const visitors = int64_t{x.count} + own_all, tiles = (visitors + kItemKeys - 1) / kItemKeys;
    auto const cut = [&](int32_t i) {
        auto const at = static_cast<int32_t>(min(tiles * i / x.pieces * kItemKeys, visitors));
        return at <= x.count ? at : max(at - left_out, x.count);
    };
    item.first = cut(piece);
    item.begin = item.first / kItemKeys * kItemKeys;
    item.end = cut(piece + 1);
    if (item.first == item.end) item.begin = item.end;
    int32_t const own = own_all - left_out;
    bool const part = item.key_end - item.key < kItemKeys;
    item.masked = part ? 0 : x.count;
    item.masked_end = part ? INT_MAX : x.count + min(max(item.key_end - 1 - item.own_token, 0) * a.group, own);
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
    int32_t const of_piece = x.pieces == 0 ? 0 : x.items / x.pieces;
    for (int32_t i = lane; i < x.items; i += 32) {
        int32_t const run = i % of_piece, piece = i / of_piece;
        Item item{};
        item.g = a.head + head;
        item.key = x.block.begin + run * kItemKeys;
        item.key_end = min(x.block.end, item.key + kItemKeys);
        item.list = x.list;
        item.listed = x.count;
        item.first_slot =
            static_cast<int32_t>((int64_t{head} * a.wave_rows - int64_t{a.wave_begin} * a.group) * f.row_slots +
                                 run / f.chain);  // modulo 2^32
        item.flags = (run % f.chain != 0 ? kAddToPartial : 0) |
                     (f.shares_sums || x.block.begin < f.earlier ? kAddToSums : 0) | (run < f.chain ? kFirstChain : 0);
        if (run < x.runs)
            cut_piece(a, x, piece, item);
        else
            item.end = kFiller;
        item.piece = x.dumps > 0 ? pieces + run * x.dumps + piece : -1;
        item.place = place_of_run(f, index, item.key);
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
    f.chain = static_cast<int32_t>(plan.chain);
    f.chains = static_cast<int32_t>(plan.runs / plan.chain);
    f.row_slots = static_cast<int32_t>(plan.row_slots);
    f.piece_rows = static_cast<int32_t>(plan.piece_rows);
    f.inverse_group = f.a.group == 1 ? 0 : static_cast<uint32_t>((int64_t{1} << 32) / f.a.group + 1);
    f.whole_runs = plan.whole_runs();
    f.carry = plan.carries;
    f.shares_sums = plan.shares_sums;
    f.carry_out = wave.chunk + wave.chunks < plan.chunks;
    f.earlier = wave.chunk > 0 ? f.a.query_begin + f.a.wave_begin : INT_MIN;
    f.adds_to_dq = plan.adds_to_dq;
    f.later = f.carry_out ? f.a.query_begin + f.a.wave_end : INT_MAX;
    return f;
}

void plan_items(Stage const& stage, Wave const& wave) {
    FusedArgs const args = fused_args(stage, wave, {});
    if (args.shares_sums && wave.chunk == 0)
        check_cuda(cudaMemsetAsync(args.carried, 0, stage.plan.carried.bytes, stage.problem.stream), "carried sums");
    launch({"count_items", wave.heads, 1, kScanThreads, 0, stage.problem.stream}, count_items, args);
    launch({"fill_items", ceil_div(stage.plan.blocks, 8), wave.heads, 256, 0, stage.problem.stream}, fill_items, args);
}

}  // namespace perigee::moba
