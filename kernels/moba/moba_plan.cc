#include "kernels/moba/moba_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace perigee {
namespace {

constexpr int64_t kMaxChunks = 256;
constexpr int64_t kLeastChunkQueries = 128;
constexpr int64_t kLeastRowTile = 64;  ///< of any kernel
constexpr size_t kAlignment = 256;
// Of the fused backward, about: several for each multiprocessor, and where memory is short at least two. Where a chain
// has runs that follow each other, every piece leaves more sums to add; where pieces share sums, they take no memory.
constexpr int64_t kPiecesOfWave = 1536, kChainedPiecesOfWave = 1024, kSharingPiecesOfWave = 4096;
constexpr int64_t kFewestPiecesOfWave = 256;
constexpr int64_t kLeastPieceRows = 512;
// Visits of a row that may add to its dq in fp16, in any order: every one rounds. Where many add about the same, all of
// those roundings go one way: even then the error of so many is about that of places.
constexpr int64_t kMostAddedVisits = 32;
// Of a head's queries, whose sums of dk and dv are rounded to bf16 in between. Of sums without a direction W waves add
// sqrt(W / 2) times the error of one rounding.
constexpr int64_t kFewRoundedWaves = 6, kMostRoundedWaves = 12;
constexpr int64_t kCacheBytes = 40 << 20;  ///< of the L2 cache, that rows of q may count on
constexpr int64_t kLongBlock = 200;        ///< keys from which on products take longer than memory
constexpr int64_t kLeastListRows = 512;    ///< on average: half a tile of each list is empty
constexpr int64_t kLongestChain = 4;       ///< each run of keys beyond the first rounds the sum once more

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Every document may end in an incomplete block.
int64_t most_blocks(MobaShape const& s) { return std::min(s.tokens, s.tokens / s.options.block_size + s.documents); }

/// Hands out the scratch memory region by region.
class Layout {
  public:
    MobaRegion take(int64_t count, size_t size) {
        MobaRegion const region{end_, static_cast<size_t>(count) * size};
        end_ = (end_ + region.bytes + kAlignment - 1) / kAlignment * kAlignment;
        return region;
    }
    size_t end() const { return end_; }

  private:
    size_t end_ = 0;
};

/// Whether the backward keeps the sums of a run of keys in the registers of a thread block.
bool is_fused(MobaPlan const& plan) { return plan.task == MobaTask::backward && plan.kernels == MobaKernels::hopper; }

/// Rows of the tiles that the lists are cut into.
int64_t row_tile(MobaPlan const& plan) {
    if (plan.task != MobaTask::forward) return 64;
    return plan.kernels == MobaKernels::hopper && plan.shape.options.block_size <= kMobaShortBlock ? 192 : 128;
}

/// Of the partial results of a query's rows of one key/value head.
size_t partial_bytes_of_query(MobaPlan const& plan) {
    size_t const lse = plan.task == MobaTask::forward ? sizeof(float) : 0;
    size_t const per_slot = static_cast<size_t>(plan.shape.head_dim) * 2 + lse;
    return static_cast<size_t>(plan.shape.group() * plan.row_slots) * per_slot;
}

/// The most of a sequence of `all` in pieces of up to `most`, where the pieces are as even as can be.
int64_t even(int64_t all, int64_t most) { return most == 0 ? 0 : ceil_div(all, ceil_div(all, most)); }

/// Chunks that a wave of one head should have at most. Visits to short blocks are so short that the forward waits for
/// rows of q that are not in the cache, unless lists of fewer queries would leave tiles half empty.
int64_t chunks_in_cache(MobaPlan const& plan) {
    MobaShape const& s = plan.shape;
    int64_t const chunk_rows = plan.chunk_queries * s.group();
    int64_t const most = kCacheBytes / std::max<int64_t>(chunk_rows * s.head_dim * 2, 1);
    if (plan.task != MobaTask::forward || s.options.block_size >= kLongBlock || most >= plan.chunks || most == 0)
        return plan.chunks;
    int64_t const chunks = even(plan.chunks, most);
    return chunks * chunk_rows * s.slots() < kLeastListRows * plan.blocks ? plan.chunks : chunks;
}

/// Key/value heads first: a wave has the same queries of as many heads as there is room for. Waves are even.
void cut_into_waves(MobaPlan& plan, size_t room_for_partial) {
    MobaShape const& s = plan.shape;
    size_t const per_query = std::max<size_t>(partial_bytes_of_query(plan), 1);
    size_t const per_chunk = std::max<size_t>(per_query * static_cast<size_t>(plan.chunk_queries), 1);
    int64_t const chunks = chunks_in_cache(plan), room = static_cast<int64_t>(room_for_partial / per_chunk);
    plan.wave_chunks = std::min(chunks, std::max<int64_t>(room, 1));
    plan.wave_kv_heads = std::clamp<int64_t>(room / std::max<int64_t>(chunks, 1), 1, s.kv_heads);
    plan.wave_kv_heads = even(s.kv_heads, plan.wave_kv_heads);
    plan.wave_chunks = even(plan.chunks, plan.wave_chunks);
}

/// The longest chain that divides the runs of a block.
int64_t chain_of(int64_t runs) {
    int64_t chain = std::min(runs, kLongestChain);
    while (runs % chain != 0) --chain;
    return chain;
}

/// The best kernels for the task that the GPU runs and that take the shape.
MobaKernels choose_kernels(MobaShape const& s, MobaTask task) {
    bool const sizes = s.head_dim == 64 || s.head_dim == 128;
    // A row's places are in registers, so there are few; a tile has the rows of a group's heads side by side.
    bool const select =
        s.slots() <= 15 && s.group() <= 128 && (s.options.selection == MobaSelection::per_head || s.group() == 1);
    int64_t const B = s.options.block_size;  // of which the backward takes 128 keys at a time
    bool const backward = s.queries > 0 && s.group() <= 64 && (B % kMobaItemKeys == 0 || B > 4 * kMobaItemKeys);
    bool const takes = task == MobaTask::forward || (task == MobaTask::select ? select : backward);
    return takes && sizes ? s.gpu : MobaKernels::mma;
}

/// The parts of scratch memory that only the fused backward has. Rows that see a run of keys are shared out over pieces
/// where they are many, `pieces` of all runs, about.
void lay_out_items(MobaPlan& plan, Layout& layout, int64_t pieces) {
    MobaShape const& s = plan.shape;
    int64_t const visits = plan.wave_kv_heads * plan.wave_queries() * s.group() * s.options.top_k;
    int64_t const chains = plan.runs / plan.chain;
    plan.piece_rows = std::max(ceil_div(visits * chains, pieces * kMobaItemKeys) * kMobaItemKeys, kLeastPieceRows);
    int64_t const cuts = visits * plan.runs / plan.piece_rows;
    // Blocks that may end inside of a run of keys, or with a chain that is not full: items without work fill it up.
    int64_t const ends = plan.whole_runs() ? s.documents : plan.blocks;
    int64_t const runs = s.tokens / kMobaItemKeys + ends;
    size_t const sums = size_t{2} * kMobaItemKeys * static_cast<size_t>(s.head_dim) * sizeof(float);
    plan.items = layout.take(plan.wave_kv_heads * (runs + ends * plan.chain) + cuts, 16 * sizeof(int32_t));
    plan.item_begin = layout.take(plan.wave_kv_heads * (plan.blocks + 1), sizeof(int32_t));
    plan.piece_begin = layout.take(plan.wave_kv_heads * (plan.blocks + 1), sizeof(int32_t));
    plan.counters = layout.take(2, sizeof(int32_t));
    bool const carries = plan.carries && plan.wave_chunks < plan.chunks;
    // Where a run has several, each has 3 / 4 of piece_rows.
    plan.pieces = layout.take(carries && plan.shares_sums ? 0 : cuts + cuts / 3 + 2, sums);
    plan.carried = layout.take(carries ? runs : 0, sums);
    plan.largest = layout.take(plan.adds_to_dq ? 2 : 0, sizeof(uint32_t));
}

bool has_lists(MobaPlan const& plan) { return plan.task != MobaTask::select && plan.shape.slots() > 0; }

void lay_out_lists(MobaPlan& plan, Layout& layout) {
    MobaShape const& s = plan.shape;
    int64_t const heads = has_lists(plan) ? s.kv_heads : 0, blocks = plan.blocks;
    plan.lists.offset = layout.end();
    plan.first = layout.take(s.documents + 1, sizeof(int32_t));
    plan.block_table = layout.take(blocks, 4 * sizeof(int32_t));
    plan.block_of = layout.take(s.tokens, sizeof(int32_t));
    plan.places = layout.take(heads * blocks * plan.chunks, sizeof(int32_t));
    plan.starts = layout.take(heads * blocks * plan.chunks, sizeof(int32_t));
    plan.totals = layout.take(heads * blocks, sizeof(int32_t));
    plan.arrived = layout.take(heads, sizeof(int32_t));
    plan.list_begin = layout.take(heads * (blocks + 1), sizeof(int32_t));
    plan.list = layout.take(heads * s.places(), sizeof(uint32_t));
    plan.lists.bytes = layout.end() - plan.lists.offset;
}

/// What the shape alone decides.
MobaPlan begin_plan(MobaShape const& s, MobaTask task) {
    std::string const refusal = moba_refusal(s);
    PERIGEE_CHECK(refusal.empty(), "{}", refusal);
    MobaPlan plan;
    plan.shape = s;
    plan.task = task;
    plan.kernels = choose_kernels(s, task);
    plan.blocks = most_blocks(s);
    plan.chunk_queries = std::max(ceil_div(s.queries, kMaxChunks), kLeastChunkQueries);
    plan.chunks = ceil_div(s.queries, plan.chunk_queries);
    plan.row_tile = row_tile(plan);
    plan.row_slots = s.slots();
    return plan;
}

/// Waves whose partial results find room, and where everything is.
void lay_out(MobaPlan& plan, size_t room_for_partial, int64_t pieces) {
    MobaShape const& s = plan.shape;
    MobaTask const task = plan.task;
    cut_into_waves(plan, room_for_partial);
    int64_t const wave_slots =
        task != MobaTask::select ? plan.wave_kv_heads * plan.wave_queries() * s.group() * plan.row_slots : 0;
    int64_t const backward_rows = task == MobaTask::backward ? s.queries * s.heads : 0;
    Layout layout;
    plan.centroids = layout.take(task == MobaTask::select ? plan.blocks * s.kv_heads * s.head_dim : 0, 2);
    plan.tiles = layout.take(has_lists(plan) ? plan.wave_kv_heads * (plan.blocks + 1) : 0, sizeof(int32_t));
    plan.partial = layout.take(wave_slots * s.head_dim, 2);
    plan.partial_lse = layout.take(task == MobaTask::forward ? wave_slots : 0, sizeof(float));
    plan.row_numbers = layout.take(backward_rows, 4 * sizeof(float));
    if (is_fused(plan)) lay_out_items(plan, layout, pieces);
    lay_out_lists(plan, layout);
    plan.scratch_bytes = layout.end();
}

/// The largest waves with which all scratch memory takes `bytes`; false where the smallest take more. There may be
/// fewer pieces, down to `fewest`, where a wave has as many items without: then only lists much longer than others have
/// several. Pieces that share sums take no memory to speak of.
bool fit(MobaPlan& plan, size_t bytes, int64_t fewest) {
    int64_t const all = plan.shares_sums  ? kSharingPiecesOfWave
                        : plan.chain == 1 ? kPiecesOfWave
                                          : kChainedPiecesOfWave;
    for (size_t room = bytes;;) {
        int64_t pieces = all;
        lay_out(plan, room, pieces);
        bool const many = plan.wave_kv_heads * plan.blocks * (plan.runs / plan.chain) >= all;
        int64_t const least = plan.shares_sums ? all : many ? kFewestPiecesOfWave : fewest;
        while (is_fused(plan) && plan.scratch_bytes > bytes && pieces > least) lay_out(plan, room, pieces -= 128);
        size_t const partial = plan.partial.bytes + plan.partial_lse.bytes;
        if (plan.scratch_bytes <= bytes) return true;
        if (partial == 0 || plan.wave_kv_heads * plan.wave_chunks <= 1) return false;
        room = partial - 1;  // the next smaller waves; as they are even, there are few sizes
    }
}
/// Where that is nowhere enough, partial results take a quarter of `bytes`.
void fit(MobaPlan& plan, size_t bytes) {
    if (fit(plan, bytes, kPiecesOfWave) || fit(plan, bytes, kFewestPiecesOfWave)) return;
    lay_out(plan, bytes / 4, plan.shares_sums ? kSharingPiecesOfWave : kFewestPiecesOfWave);
}

/// With visits that add to dq: one wave, unless memory is very short. Runs are no chains, as none waits for another:
/// those of a block go to as many thread blocks, which read its rows, and add to theirs of dq, at about the same time.
MobaPlan without_partial(MobaPlan plan, size_t bytes) {
    plan.adds_to_dq = true;
    plan.row_slots = 0;
    fit(plan, bytes);
    return plan;
}

/// Sums that go from wave to wave keep their precision where that costs few waves more, or where there are several and
/// memory suffices, or where there are many.
void fit_sums(MobaPlan& plan, size_t bytes) {
    fit(plan, bytes);
    if (!is_fused(plan) || plan.wave_chunks >= plan.chunks) return;
    MobaPlan carrying = plan;
    carrying.carries = true;
    fit(carrying, bytes);
    carrying.carries = carrying.wave_chunks < carrying.chunks;  // other waves: none, perhaps, that share keys
    int64_t const waves = ceil_div(plan.chunks, plan.wave_chunks);
    bool const cheap = 8 * carrying.waves() <= 9 * plan.waves() || waves > kFewRoundedWaves;
    if (waves > kMostRoundedWaves || (cheap && carrying.scratch_bytes <= bytes)) plan = carrying;
}

/// In any order: one sum of a run's keys for all pieces and waves of a head, unless that makes more waves.
void share_sums(MobaPlan& plan, size_t bytes) {
    if (!is_fused(plan) || plan.shape.deterministic || plan.wave_chunks >= plan.chunks) return;
    MobaPlan sharing = plan;
    sharing.carries = sharing.shares_sums = true;
    fit(sharing, bytes);
    bool const in_waves = sharing.wave_chunks < sharing.chunks;
    if (in_waves && sharing.waves() <= plan.waves() && sharing.scratch_bytes <= std::max(bytes, plan.scratch_bytes))
        plan = sharing;
}

}  // namespace

char const* name_of(MobaKernels kernels) { return kernels == MobaKernels::hopper ? "hopper" : "mma"; }

MobaShape as_full_attention(MobaShape shape, int64_t longest_document) {
    shape.options = {.block_size = std::max<int64_t>(longest_document, 1), .top_k = 1};
    return shape;
}

std::string moba_refusal(MobaShape const& s) {
    if (s.head_dim != 32 && s.head_dim != 64 && s.head_dim != 96 && s.head_dim != 128)
        return fmt::format("head_dim {} is not 32, 64, 96 or 128", s.head_dim);
    if (s.heads < 1 || s.kv_heads < 1 || s.heads % s.kv_heads != 0)
        return fmt::format("{} heads are no multiple of {} key/value heads", s.heads, s.kv_heads);
    if (s.options.block_size < 1) return fmt::format("block_size {} is not positive", s.options.block_size);
    if (s.options.top_k < 1 || s.options.top_k > 64) return fmt::format("top_k {} is not in 1..64", s.options.top_k);
    if (s.tokens < 0 || s.documents < 0 || s.queries < 0 || s.queries > s.tokens)
        return fmt::format("{} queries of {} tokens in {} documents", s.queries, s.tokens, s.documents);
    if (s.tokens >= int64_t{1} << 30) return fmt::format("{} tokens in one pack are too many", s.tokens);
    if (s.queries * s.group() > int64_t{1} << 26 || s.places() >= int64_t{1} << 31)
        return fmt::format("{} queries x {} heads of a group x {} slots are too many", s.queries, s.group(), s.slots());
    int64_t const block = std::min(s.options.block_size, s.tokens);
    if (most_blocks(s) * ceil_div(block * s.group(), kLeastRowTile) >= int64_t{1} << 31)
        return fmt::format("{} tokens in up to {} documents of blocks of {} are too many", s.tokens, s.documents,
                           block);
    return "";
}

int64_t MobaPlan::waves() const {
    return wave_chunks == 0 ? 0 : ceil_div(shape.kv_heads, wave_kv_heads) * ceil_div(chunks, wave_chunks);
}

size_t moba_lists_bytes(MobaShape const& shape) {
    MobaPlan plan = begin_plan(shape, MobaTask::forward);
    Layout layout;
    lay_out_lists(plan, layout);
    return plan.lists.bytes;
}

MobaPlan plan_moba(MobaShape const& s, MobaTask task, size_t bytes) {
    MobaPlan plan = begin_plan(s, task);
    if (!is_fused(plan)) {
        fit_sums(plan, bytes);
        return plan;
    }
    plan.runs = ceil_div(std::min(s.options.block_size, s.tokens), kMobaItemKeys);
    std::optional<MobaPlan> adding;
    if (!s.deterministic && s.options.top_k * plan.runs <= kMostAddedVisits) adding = without_partial(plan, bytes);
    if (adding && adding->waves() > 1) adding.reset();  // it would clear dq once only
    if (adding && adding->scratch_bytes <= bytes) return *adding;
    plan.chain = chain_of(plan.runs);
    plan.row_slots = s.options.top_k * (plan.runs / plan.chain) - 1;
    // Blocks so long that one chunk's rows have too many places leave one place per block instead.
    if (partial_bytes_of_query(plan) * static_cast<size_t>(plan.chunk_queries) > bytes) {
        plan.kernels = MobaKernels::mma;
        plan.runs = plan.chain = 1;
        plan.row_slots = s.slots();
    }
    fit_sums(plan, bytes);
    if (adding && adding->scratch_bytes <= plan.scratch_bytes) return *adding;
    share_sums(plan, bytes);
    return plan;
}

std::string to_string(MobaShape const& s) {
    return fmt::format("T {} q {} H {}/{} x {}, B {} k {}{}{}, {} documents", s.tokens, s.queries, s.heads, s.kv_heads,
                       s.head_dim, s.options.block_size, s.options.top_k, s.options.force_previous ? " forced" : "",
                       s.options.selection == MobaSelection::per_group ? " per group" : "", s.documents);
}

std::string to_string(MobaPlan const& p) {
    char const* const task = p.task == MobaTask::select    ? "select"
                             : p.task == MobaTask::forward ? "forward"
                                                           : "backward";
    char const* const any_order = p.adds_to_dq ? ", adds to dq" : p.shares_sums ? ", shares sums" : "";
    return fmt::format(
        "{}: {} blocks, {} chunks of {}, {} wave{} of {} kv heads x {} chunks, {}-row tiles, {:.3f} GiB, {}{}", task,
        p.blocks, p.chunks, p.chunk_queries, p.waves(), p.waves() == 1 ? "" : "s", p.wave_kv_heads, p.wave_chunks,
        p.row_tile, static_cast<double>(p.scratch_bytes) / static_cast<double>(size_t{1} << 30), name_of(p.kernels),
        any_order);
}

}  // namespace perigee
