// How the GPU does MoBA: from a printable description of a problem to a printable choice of tiles, phases and scratch
// memory. Pure arithmetic, needs no CUDA, and depends on no contents of the tensors: launches can be replayed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/moba/moba.h"

namespace perigee {

/// Kernels whose products are made by a warp (mma.sync, from compute capability 8.0 on) or by a warpgroup (wgmma, 9.0).
enum class MobaKernels { mma, hopper };

struct MobaShape {
    int64_t tokens = 0;     ///< T: keys of the pack
    int64_t queries = 0;    ///< rows of q, a range of the pack's tokens
    int64_t documents = 0;  ///< at most; empty ones count
    int64_t heads = 0;      ///< H
    int64_t kv_heads = 0;   ///< G, a divisor of H
    int64_t head_dim = 0;   ///< K: 32, 64, 96 or 128
    MobaOptions options = {};
    MobaKernels gpu = MobaKernels::mma;  ///< the best that the GPU runs, as the program was built
    /// The backward's bits are the same every time; else only its precision is, where that is faster.
    bool deterministic = true;

    int64_t group() const { return heads / kv_heads; }
    int64_t slots() const { return options.top_k - 1; }  ///< S: blocks a query chooses
    /// Places of one key/value head's part of a choice [queries, H, S].
    int64_t places() const { return queries * group() * slots(); }
};

/// Full causal attention by the same kernels: every document is one block, at least as long as the longest document.
MobaShape as_full_attention(MobaShape shape, int64_t longest_document);

enum class MobaTask { select, forward, backward };

/// A part of the scratch memory.
struct MobaRegion {
    size_t offset = 0;
    size_t bytes = 0;
};

/// Keys that a thread block of the fused backward holds.
inline constexpr int kMobaItemKeys = 128;

struct MobaPlan {
    MobaShape shape;
    MobaTask task = MobaTask::forward;
    MobaKernels kernels = MobaKernels::mma;  ///< that do the task
    int64_t blocks = 0;                      ///< at least the number of blocks of all documents
    int64_t chunks = 0;                      ///< of queries; each has its own part of every list
    int64_t chunk_queries = 0;               ///< the last chunk may be short
    int64_t wave_kv_heads = 0;               ///< key/value heads and
    int64_t wave_chunks = 0;                 ///< chunks whose partial results are in memory at a time
    int64_t row_tile = 0;                    ///< rows of q in a tile of the list kernels

    MobaRegion centroids;             ///< mean keys of blocks
    MobaRegion tiles;                 ///< of the lists, in a wave
    MobaRegion partial, partial_lse;  ///< row_slots per row
    MobaRegion row_numbers;           ///< of each row in the backward

    // The fused backward on Hopper, whose items are (run of kMobaItemKeys keys, piece of the rows that see it).
    int64_t runs = 1;   ///< of keys in a whole block
    int64_t chain = 1;  ///< runs that follow each other in one thread block and share a row's partial result, if any
    /// Partial results of a row: one per choice, and chain; in the fused backward also for the own block's chains but
    /// the first, which has its place in dq.
    int64_t row_slots = 0;
    int64_t piece_rows = 0;  ///< of a piece, about: half as many more at most
    bool carries = false;    ///< sums of dk and dv from wave to wave in fp32, else in dk and dv
    /// All pieces, of all waves of a head, add to the one carried sum of their keys, in any order: no sums of pieces.
    /// Where the shape is not `deterministic`.
    bool shares_sums = false;
    /// Visits add to dq itself, in any order: no partial results, one wave. Where the shape is not `deterministic`.
    bool adds_to_dq = false;
    MobaRegion items, item_begin, piece_begin, counters;
    MobaRegion pieces, carried;  ///< sums of dk and dv: of pieces of the same keys, of earlier waves
    MobaRegion largest;          ///< of k and v, where visits add to dq

    /// The end of the scratch memory: where blocks begin and end, and the choice turned around. The backward can take
    /// them over from the forward, for which they are the same, in memory of their own.
    MobaRegion lists;
    MobaRegion first, block_table, block_of;                       ///< blocks: of documents, their ranges, of tokens
    MobaRegion places, starts, totals, arrived, list_begin, list;  ///< none where nothing is chosen

    size_t scratch_bytes = 0;  ///< with the lists
    /// What the task needs where the lists have, or have not, memory of their own.
    size_t bytes_beside(bool lists_elsewhere) const { return lists_elsewhere ? lists.offset : scratch_bytes; }

    /// Whether runs of keys end inside of a block only where the document ends.
    bool whole_runs() const { return shape.options.block_size % kMobaItemKeys == 0; }
    int64_t wave_queries() const { return wave_chunks * chunk_queries; }
    int64_t waves() const;
};

/// Keys of the blocks that Hopper's forward takes in one step.
inline constexpr int kMobaShortBlock = 128;

char const* name_of(MobaKernels kernels);  ///< "mma", "hopper"

/// Empty, or why the kernels do not take this shape.
std::string moba_refusal(MobaShape const& shape);

/// Of MobaPlan::lists of the forward and the backward: the shape alone decides it.
size_t moba_lists_bytes(MobaShape const& shape);

/// The largest waves whose scratch memory fits into `bytes`, all of it. Where not even a wave of one key/value head and
/// one chunk does, or waves would round sums of dk and dv too often and fp32 sums do not fit, partial results take a
/// quarter of them, and the rest comes on top. Throws Category::internal with the refusal, if there is one.
MobaPlan plan_moba(MobaShape const& shape, MobaTask task, size_t bytes = kMobaScratchBytes);

/// "T 32768 q 32768 H 32/8 x 128, B 512 k 3, 1 documents"
std::string to_string(MobaShape const& shape);
/// "forward: 65 blocks, 256 chunks of 128, 1 wave of 8 kv heads x 256 chunks, 128-row tiles, 1.2 GiB, mma"
std::string to_string(MobaPlan const& plan);

}  // namespace perigee
