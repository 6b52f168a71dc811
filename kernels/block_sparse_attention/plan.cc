#include "kernels/block_sparse_attention/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/limits.h"

namespace perigee {
namespace {

constexpr int64_t kMinChunkQueries = 128;
constexpr int64_t kMinRowTile = 64;  ///< of any kernel
// Splits of a pass, about: several per multiprocessor, at least two where memory is short. Tile groups need fewer, as
// every split leaves more sums to add.
constexpr int64_t kSplits = 1536, kGroupedSplits = 1024, kMinSplits = 256;
constexpr int64_t kMinSplitRows = 512;
// fp16 adds to a row of dQ. Even where all add the same, the rounding error of so many is about that of partials.
constexpr int64_t kMaxDqAdds = 32;
constexpr int64_t kCacheBytes = 40 << 20;  ///< of the L2 cache that rows of q may count on
constexpr int64_t kLongBlock = 200;        ///< keys from which on products take longer than memory
constexpr int64_t kMinRoutedRows = 512;    ///< per block on average: half a tile of each block is empty
constexpr int64_t kLargestTileGroup = 4;   ///< each further KV tile rounds the partial once more

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool is_sm90_backward(BlockSparsePlan const& plan) {
    return plan.task == AttentionTask::backward && plan.arch == KernelArch::sm90;
}

/// The largest of the fewest even parts of `all` that are at most `most`.
int64_t even(int64_t all, int64_t most) { return most == 0 ? 0 : ceil_div(all, ceil_div(all, most)); }

/// Query chunks per pass at most. With short blocks the forward waits for rows of q that miss the cache, unless passes
/// of fewer queries would leave tiles half empty.
int64_t chunks_in_cache(BlockSparsePlan const& plan) {
    BlockSparseShape const& s = plan.shape;
    int64_t const chunk_rows = plan.chunk_queries * s.group();
    int64_t const most = kCacheBytes / std::max<int64_t>(chunk_rows * s.head_dim * 2, 1);
    if (plan.task != AttentionTask::forward || s.block_size >= kLongBlock || most >= plan.chunks || most == 0)
        return plan.chunks;
    int64_t const chunks = even(plan.chunks, most);
    return chunks * chunk_rows * s.slots() < kMinRoutedRows * plan.blocks ? plan.chunks : chunks;
}

/// Even passes whose partials fit: as many kv heads as there is room for, each with the same queries.
void cut_into_passes(BlockSparsePlan& plan, size_t room_for_partials) {
    BlockSparseShape const& s = plan.shape;
    int64_t const lse = plan.task == AttentionTask::forward ? sizeof(float) : 0;
    int64_t const per_chunk = plan.chunk_queries * s.group() * plan.row_slots * (s.head_dim * 2 + lse);
    int64_t const chunks = chunks_in_cache(plan);
    int64_t const room = static_cast<int64_t>(room_for_partials) / std::max<int64_t>(per_chunk, 1);
    plan.pass_chunks = even(plan.chunks, std::min(chunks, std::max<int64_t>(room, 1)));
    plan.pass_kv_heads = even(s.kv_heads, std::clamp<int64_t>(room / std::max<int64_t>(chunks, 1), 1, s.kv_heads));
}

/// The largest tile group that divides the KV tiles of a block.
int64_t tile_group_of(int64_t kv_tiles) {
    int64_t group = std::min(kv_tiles, kLargestTileGroup);
    while (kv_tiles % group != 0) --group;
    return group;
}

/// The best kernels that take the shape: of the backward, those for KV tiles of 128 keys.
KernelArch arch_of(BlockSparseShape const& s, AttentionTask task) {
    bool const blocks = s.block_size % kKvTile == 0 || s.block_size > 4 * kKvTile;
    bool const backward = s.queries > 0 && s.group() <= 64 && blocks;
    bool const takes = task == AttentionTask::forward || backward;
    return takes && (s.head_dim == 64 || s.head_dim == 128) ? s.arch : KernelArch::sm80;
}

/// Regions of the sm90 backward. Rows that see a KV tile are split where they are many: about `splits` in all.
void lay_out_work_items(BlockSparsePlan& plan, ScratchLayout& layout, int64_t splits) {
    BlockSparseShape const& s = plan.shape;
    int64_t const pairs = plan.pass_kv_heads * plan.pass_queries() * s.group() * s.top_k;
    int64_t const tile_groups = plan.kv_tiles / plan.tile_group;
    plan.split_rows = std::max(ceil_div(pairs * tile_groups, splits * kKvTile) * kKvTile, kMinSplitRows);
    int64_t const cuts = pairs * plan.kv_tiles / plan.split_rows;
    // Blocks that may end inside a KV tile, or with a tile group that is not full: idle items fill it up.
    int64_t const ends = plan.whole_kv_tiles() ? s.documents : plan.blocks;
    int64_t const kv_tiles = s.tokens / kKvTile + ends;
    size_t const sums = size_t{2} * kKvTile * static_cast<size_t>(s.head_dim) * sizeof(float);
    plan.items = layout.take(plan.pass_kv_heads * (kv_tiles + ends * plan.tile_group) + cuts, 16 * sizeof(int32_t));
    plan.item_begin = layout.take(plan.pass_kv_heads * (plan.blocks + 1), sizeof(int32_t));
    plan.split_begin = layout.take(plan.pass_kv_heads * (plan.blocks + 1), sizeof(int32_t));
    plan.counters = layout.take(2, sizeof(int32_t));
    plan.carried_tiles = plan.pass_chunks < plan.chunks ? kv_tiles : 0;
    // Several splits of a KV tile have 3 / 4 of split_rows each.
    plan.sums = layout.take(plan.carried_tiles + cuts + cuts / 3 + 2, sums);
    plan.max_abs = layout.take(plan.adds_to_dq ? 2 : 0, sizeof(uint32_t));
}

void lay_out_routing(BlockSparsePlan& plan, ScratchLayout& layout) {
    BlockSparseShape const& s = plan.shape;
    int64_t const heads = s.slots() > 0 ? s.kv_heads : 0, blocks = plan.blocks;
    plan.routing.offset = layout.end();
    plan.first = layout.take(s.documents + 1, sizeof(int32_t));
    plan.block_table = layout.take(blocks, 4 * sizeof(int32_t));
    plan.block_of = layout.take(s.tokens, sizeof(int32_t));
    plan.chunk_starts = layout.take(heads * blocks * (plan.chunks + 1), sizeof(int32_t));
    plan.arrived = layout.take(heads, sizeof(int32_t));
    plan.offsets = layout.take(heads * (blocks + 1), sizeof(int32_t));
    plan.indices = layout.take(heads * s.slots_per_kv_head(), sizeof(uint32_t));
    plan.routing.bytes = layout.end() - plan.routing.offset;
}

/// What the shape alone decides.
BlockSparsePlan begin_plan(BlockSparseShape const& s, AttentionTask task) {
    std::string const refusal = attention_refusal(s);
    PERIGEE_CHECK(refusal.empty(), "{}", refusal);
    BlockSparsePlan plan;
    plan.shape = s;
    plan.task = task;
    plan.arch = arch_of(s, task);
    plan.blocks = max_blocks(s);
    plan.chunk_queries = std::max(ceil_div(s.queries, kMaxChunks), kMinChunkQueries);
    plan.chunks = ceil_div(s.queries, plan.chunk_queries);
    bool const short_blocks = plan.arch == KernelArch::sm90 && s.block_size <= kShortBlock;
    plan.row_tile = task == AttentionTask::backward ? 64 : short_blocks ? 192 : 128;
    plan.row_slots = s.slots();
    return plan;
}

/// Passes whose partials have room, and all regions.
void lay_out(BlockSparsePlan& plan, size_t room_for_partials, int64_t splits) {
    BlockSparseShape const& s = plan.shape;
    cut_into_passes(plan, room_for_partials);
    int64_t const pass_slots = plan.pass_kv_heads * plan.pass_queries() * s.group() * plan.row_slots;
    bool const forward = plan.task == AttentionTask::forward;
    ScratchLayout layout;
    plan.tiles = layout.take(s.slots() > 0 ? plan.pass_kv_heads * (plan.blocks + 1) : 0, sizeof(int32_t));
    plan.partial = layout.take(pass_slots * s.head_dim, 2);
    plan.partial_lse = layout.take(forward ? pass_slots : 0, sizeof(float));
    plan.row_stats = layout.take(forward ? 0 : s.queries * s.heads, 4 * sizeof(float));
    if (is_sm90_backward(plan)) lay_out_work_items(plan, layout, splits);
    lay_out_routing(plan, layout);
    plan.scratch_bytes = layout.end();
}

/// The fewest passes that fit; false where the smallest pass does not. A smaller pass has fewer partials. Routing, row
/// statistics and sums carried from pass to pass keep their size. Fewer splits, down to kMinSplits, also save memory,
/// where a pass has many work items anyway, or is the smallest.
bool fit(BlockSparsePlan& plan, size_t bytes) {
    int64_t const all = plan.tile_group == 1 ? kSplits : kGroupedSplits;
    for (size_t room = bytes;;) {
        int64_t splits = all;
        lay_out(plan, room, splits);
        size_t const partials = plan.partial.bytes + plan.partial_lse.bytes;
        bool const smallest = partials == 0 || plan.pass_kv_heads * plan.pass_chunks <= 1;
        bool const many = plan.pass_kv_heads * plan.blocks * (plan.kv_tiles / plan.tile_group) >= all;
        int64_t const least = many || smallest ? kMinSplits : all;
        while (is_sm90_backward(plan) && plan.scratch_bytes > bytes && splits > least)
            lay_out(plan, room, splits -= 128);
        if (plan.scratch_bytes <= bytes) return true;
        if (smallest) return false;
        room = partials - 1;  // one byte too few for this pass: the next smaller one; there are few sizes
    }
}

}  // namespace

char const* name_of(KernelArch arch) { return arch == KernelArch::sm90 ? "sm90" : "sm80"; }

int64_t max_blocks(BlockSparseShape const& s) { return std::min(s.tokens, s.tokens / s.block_size + s.documents); }

BlockSparseShape as_full_attention(BlockSparseShape shape, int64_t longest_document) {
    shape.block_size = std::max<int64_t>(longest_document, 1);
    shape.top_k = 1;
    return shape;
}

std::string attention_refusal(BlockSparseShape const& s) {
    constexpr int64_t kMostHeads = 65535, kTooMany = 1 << 30;  // grids have as many thread blocks along y and z
    constexpr int64_t kMostBlocks = kMostHeads * kFillRange;
    if (!kernels::attention_takes_head(s.head_dim))
        return fmt::format("head_dim {} is not 32, 64, 96 or 128", s.head_dim);
    if (s.heads > kMostHeads) return fmt::format("{} heads are more than {}", s.heads, kMostHeads);
    if (s.heads < 1 || s.kv_heads < 1 || s.heads % s.kv_heads != 0)
        return fmt::format("{} heads are no multiple of {} key/value heads", s.heads, s.kv_heads);
    if (s.block_size < 1) return fmt::format("block_size {} is not positive", s.block_size);
    if (s.top_k < 1 || s.top_k > 64) return fmt::format("top_k {} is not in 1..64", s.top_k);
    if (s.tokens < 0 || s.documents < (s.tokens > 0 ? 1 : 0) || s.queries < 0 || s.queries > s.tokens)
        return fmt::format("{} queries of {} tokens in {} documents", s.queries, s.tokens, s.documents);
    if (s.tokens >= kTooMany || s.documents >= kTooMany)
        return fmt::format("{} tokens in {} documents in one pack are too many", s.tokens, s.documents);
    if (s.queries * s.group() > int64_t{1} << 26 || s.slots_per_kv_head() >= int64_t{1} << 31)
        return fmt::format("{} queries x {} heads of a group x {} slots are too many", s.queries, s.group(), s.slots());
    if (s.queries * s.heads >= int64_t{1} << 31)
        return fmt::format("{} queries x {} heads are too many", s.queries, s.heads);
    int64_t const block = std::min(s.block_size, s.tokens);
    double const row_tiles = static_cast<double>(ceil_div(block * s.group(), kMinRowTile));  // a product may overflow
    if (row_tiles * static_cast<double>(max_blocks(s)) * static_cast<double>(s.kv_heads) >= 0x1p31 ||
        max_blocks(s) > kMostBlocks)
        return fmt::format("{} tokens in up to {} documents of blocks of {} are too many", s.tokens, s.documents,
                           block);
    return "";
}

int64_t BlockSparsePlan::passes() const {
    return pass_chunks == 0 ? 0 : ceil_div(shape.kv_heads, pass_kv_heads) * ceil_div(chunks, pass_chunks);
}

size_t routing_bytes(BlockSparseShape const& shape) {
    BlockSparsePlan plan = begin_plan(shape, AttentionTask::forward);
    ScratchLayout layout;
    lay_out_routing(plan, layout);
    return plan.routing.bytes;
}

BlockSparsePlan plan_attention(BlockSparseShape const& s, AttentionTask task, size_t bytes) {
    BlockSparsePlan const empty = begin_plan(s, task);
    BlockSparsePlan plan = empty;
    if (is_sm90_backward(plan)) {
        plan.kv_tiles = ceil_div(std::min(s.block_size, s.tokens), kKvTile);
        if (!s.deterministic && s.top_k * plan.kv_tiles <= kMaxDqAdds) {
            // All KV tiles add to dQ, which is cleared once, so in one pass.
            BlockSparsePlan adding = plan;
            adding.adds_to_dq = true;
            adding.row_slots = 0;
            if (fit(adding, bytes) && adding.passes() == 1) return adding;
        }
        plan.tile_group = tile_group_of(plan.kv_tiles);
        plan.row_slots = s.top_k * (plan.kv_tiles / plan.tile_group) - 1;
    }
    if (fit(plan, bytes)) return plan;
    if (is_sm90_backward(plan)) {  // very long blocks: the sm80 kernels have one dQ partial per selected block
        plan = empty;
        plan.arch = KernelArch::sm80;
        if (fit(plan, bytes)) return plan;
    }
    fail(Category::config,
         "attention of {} needs {} bytes of scratch memory for one kv head and {} queries at a time, {} are allowed: "
         "raise train.moba_scratch_mib to {}",
         to_string(s), plan.scratch_bytes, plan.chunk_queries, bytes, (plan.scratch_bytes >> 20) + 1);
}

void check_query_range(BlockSparseShape const& s, int64_t query_begin) {
    PERIGEE_CHECK(query_begin >= 0 && query_begin + s.queries <= s.tokens, "queries from {} on of {}", query_begin,
                  to_string(s));
}

void check_task(BlockSparsePlan const& plan, AttentionTask task) {
    PERIGEE_CHECK(plan.task == task, "the plan is of another task: {}", to_string(plan));
}

std::string to_string(BlockSparseShape const& s) {
    return fmt::format("T {} q {} H {}/{} x {}, B {} k {}, {} documents", s.tokens, s.queries, s.heads, s.kv_heads,
                       s.head_dim, s.block_size, s.top_k, s.documents);
}

std::string to_string(BlockSparsePlan const& p) {
    return fmt::format(
        "{}: {} blocks, {} chunks of {}, {} pass{} of {} kv heads x {} chunks, {}-row tiles, {:.3f} GiB, {}{}",
        p.task == AttentionTask::forward ? "forward" : "backward", p.blocks, p.chunks, p.chunk_queries, p.passes(),
        p.passes() == 1 ? "" : "es", p.pass_kv_heads, p.pass_chunks, p.row_tile,
        static_cast<double>(p.scratch_bytes) / static_cast<double>(size_t{1} << 30), name_of(p.arch),
        p.adds_to_dq ? ", adds to dq" : "");
}

}  // namespace perigee
