// How the GPU computes block-sparse attention: from a printable shape to a printable plan of kernels, passes and
// scratch memory. Pure arithmetic without CUDA. The plan depends on the shape alone, so launches can be replayed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace perigee {

/// Warp products (mma.sync, compute capability 8.0 on) or warpgroup products (wgmma, 9.0a).
enum class KernelArch { sm80, sm90 };

inline constexpr size_t kAttentionScratchBytes = size_t{2} << 30;  ///< default budget of scratch memory
inline constexpr int kKvTile = 128;                                ///< keys of a work item of the sm90 backward
inline constexpr int kShortBlock = 128;                            ///< keys that the sm90 forward takes in one step

struct BlockSparseShape {
    int64_t tokens = 0;     ///< T: keys of the pack
    int64_t queries = 0;    ///< a range of the pack's tokens
    int64_t documents = 0;  ///< upper bound; empty ones count
    int64_t heads = 0;      ///< H
    int64_t kv_heads = 0;   ///< G, a divisor of H
    int64_t head_dim = 0;   ///< K: 32, 64, 96 or 128
    int64_t block_size = 512;
    int64_t top_k = 1;                   ///< blocks per query, the local block included
    KernelArch arch = KernelArch::sm80;  ///< best of the GPU and the build
    bool deterministic = true;           ///< else the backward may add in any order: faster, as precise

    int64_t group() const { return heads / kv_heads; }
    int64_t slots() const { return top_k - 1; }  ///< S: selected past blocks per query
    /// Slots of one kv head in a selection [queries, H, S].
    int64_t slots_per_kv_head() const { return queries * group() * slots(); }
    bool operator==(BlockSparseShape const&) const = default;
};

/// Full causal attention: every document is one block.
BlockSparseShape as_full_attention(BlockSparseShape shape, int64_t longest_document);

enum class AttentionTask { forward, backward };

struct ScratchRegion {
    size_t offset = 0;
    size_t bytes = 0;
};

/// Hands out scratch memory region by region, aligned to 256 bytes.
class ScratchLayout {
  public:
    ScratchRegion take(int64_t count, size_t size) {
        ScratchRegion const region{end_, static_cast<size_t>(count) * size};
        end_ = (end_ + region.bytes + 255) / 256 * 256;
        return region;
    }
    size_t end() const { return end_; }

  private:
    size_t end_ = 0;
};

struct BlockSparsePlan {
    BlockSparseShape shape;
    AttentionTask task = AttentionTask::forward;
    KernelArch arch = KernelArch::sm80;  ///< kernels that run
    int64_t blocks = 0;                  ///< upper bound over all documents
    int64_t chunks = 0;                  ///< query chunks: the unit of passes and of routing
    int64_t chunk_queries = 0;           ///< the last chunk may be short
    int64_t pass_kv_heads = 0;           ///< kv heads per pass
    int64_t pass_chunks = 0;             ///< query chunks per pass
    int64_t row_tile = 0;                ///< query rows per tile

    ScratchRegion tiles;                 ///< tiles of each block's rows in a pass
    ScratchRegion partial, partial_lse;  ///< partial results, row_slots per row
    ScratchRegion row_stats;             ///< backward: per row

    // The sm90 backward. A work item is a KV tile and a split of the rows that see it.
    int64_t kv_tiles = 1;     ///< of a whole block
    int64_t tile_group = 1;   ///< consecutive KV tiles of one thread block, which share a row's dQ partial
    int64_t row_slots = 0;    ///< partials per row: forward S; backward top_k kv_tiles / tile_group - 1, or 0
    int64_t split_rows = 0;   ///< target rows of a split; at most half as many more
    bool adds_to_dq = false;  ///< non-deterministic: no dQ partials, one pass
    ScratchRegion items, item_begin, split_begin, counters;
    int64_t carried_tiles = 0;  ///< KV tiles whose dK, dV are carried from pass to pass of a head
    ScratchRegion sums;         ///< carried dK, dV, then those of splits that share a KV tile, fp32
    ScratchRegion max_abs;      ///< of k and v, with adds_to_dq

    /// At the end of scratch memory: block table and routing. Forward and backward lay it out alike, so the backward
    /// can take over the forward's copy.
    ScratchRegion routing;
    ScratchRegion first, block_table, block_of, chunk_starts, arrived, offsets, indices;

    size_t scratch_bytes = 0;  ///< routing included
    /// Bytes of scratch memory when the routing has memory of its own, or has not.
    size_t bytes_beside(bool routing_elsewhere) const { return routing_elsewhere ? routing.offset : scratch_bytes; }

    /// Whether a KV tile is cut short only by the end of a document.
    bool whole_kv_tiles() const { return shape.block_size % kKvTile == 0; }
    int64_t pass_queries() const { return pass_chunks * chunk_queries; }
    int64_t passes() const;
};

char const* name_of(KernelArch arch);  ///< "sm80", "sm90"

constexpr int64_t kMaxChunks = 256;  ///< of queries, in which the routing counts
constexpr int kFillRange = 1024;     ///< blocks whose counters a thread block of the routing holds

/// Upper bound of the blocks of all documents.
int64_t max_blocks(BlockSparseShape const& shape);

/// Why the kernels refuse the shape; empty where they take it.
std::string attention_refusal(BlockSparseShape const& shape);

/// Size of BlockSparsePlan::routing, which the shape alone decides.
size_t routing_bytes(BlockSparseShape const& shape);

/// The plan with the fewest passes whose scratch memory fits into `bytes`: fewer kv heads per pass, then fewer queries.
/// Throws Category::internal for a refused shape, Category::config where even one kv head and one query chunk need more
/// bytes; the message says how many.
BlockSparsePlan plan_attention(BlockSparseShape const& shape, AttentionTask task,
                               size_t bytes = kAttentionScratchBytes);

// Throw Category::internal where a caller is wrong.
void check_query_range(BlockSparseShape const& shape, int64_t query_begin);
void check_task(BlockSparsePlan const& plan, AttentionTask task);

/// "T 32768 q 32768 H 32/8 x 128, B 512 k 3, 1 documents"
std::string to_string(BlockSparseShape const& shape);
/// "forward: 65 blocks, 256 chunks of 128, 1 pass of 8 kv heads x 256 chunks, 128-row tiles, 1.2 GiB, sm80"
std::string to_string(BlockSparsePlan const& plan);

}  // namespace perigee
