// The operations of decoding: one new token of each of S sequences, whose keys and values lie in a cache of pages. Part
// of the list in operations.h, whose conventions hold here. Semantics: docs/numerics.md.
#pragma once

#include <cstdint>

#include "kernels/sampling/draw_rule.h"
#include "ops/attended.h"

namespace perigee {

/// Keys and values of one layer in pages of P tokens. Token t of sequence s is row t % P of page table[s, t / P].
struct CachePages {
    TensorView k_NPGK;       ///< N pages; after RoPE
    TensorView v_NPGK;       ///< the same shape
    TensorView means_NGK;    ///< of complete blocks, as the gate rounds them, at the number of a block's first page
    ConstView table_SM;      ///< int32: pages of every sequence
    int64_t block_size = 0;  ///< B, a multiple of P
    int64_t page_size() const { return k_NPGK.shape[1]; }
    int64_t most_blocks() const { return table_SM.shape[1] * page_size() / block_size; }
};

/// Writes a new token of every sequence, and the mean key of each block that it completes, pooled as the gate pools it.
struct KvAppend {
    static constexpr char const* kName = "kv_append";
    CachePages pages;
    ConstView k_SGK;
    ConstView v_SGK;
    ConstView lengths_S;  ///< int32: tokens before the new one; -1: no sequence there, and nothing is written
};

/// y = norm(x) W^T, with RmsNormForward's norm, for few rows. With `swiglu`, SwigluForward of that product.
struct NormedProduct {
    static constexpr char const* kName = "normed_product";
    TensorView y_SN;
    ConstView x_SD;
    ConstView norm_D;
    ConstView w_ND;
    double eps = 0;
    bool swiglu = false;  ///< W is [2F, D], y [S, F]
};

/// Projects the residual stream of every sequence's newest token to queries, keys and values: norm, product and what
/// QkvForward does. Writes keys and values to the cache as KvAppend does. The means of blocks that they complete may be
/// left to DecodeAttend.
struct DecodeQkv {
    static constexpr char const* kName = "decode_qkv";
    TensorView q_SHK;
    CachePages pages;
    ConstView lengths_S;  ///< int32, as in KvAppend
    ConstView x_SD;
    ConstView norm_D;
    ConstView w_XD;    ///< fused QKV weights
    ConstView cos_SR;  ///< as in QkvForward
    ConstView sin_SR;
    ConstView bias_X = {};
    ConstView q_norm_K = {};
    ConstView k_norm_K = {};
    double eps = 0;
};

/// Mean keys of the complete blocks [first, first + count) of the table's one sequence.
struct PoolBlocks {
    static constexpr char const* kName = "pool_blocks";
    CachePages pages;
    int64_t first = 0;
    int64_t count = 0;
};

/// As SelectBlocks, for the newest token of every sequence, at position lengths[s], from the means of the cache. Rows
/// without a sequence get -1.
struct DecodeSelect {
    static constexpr char const* kName = "decode_select";
    TensorView chosen_SHS;
    ConstView q_SHK;
    CachePages pages;
    ConstView lengths_S;     ///< int32, as in KvAppend
    Selection selection;     ///< not full attention; its block size is the cache's
    int64_t first_head = 0;  ///< as in SelectBlocks
};

/// As AttentionForward, for the newest token of every sequence, which has been appended. Blocks are cut into splits of
/// 128 keys, whose results are merged in a fixed order. A sequence's result depends neither on its pages nor on the
/// other sequences. Rows without a sequence get zeros. With `pools`, also writes the mean key of each block that a
/// newest token completes.
struct DecodeAttend {
    static constexpr char const* kName = "decode_attend";
    TensorView o_SHK;
    ConstView q_SHK;
    CachePages pages;
    ConstView lengths_S;  ///< int32, as in KvAppend
    double scale = 0;     ///< of the scores: positive, or refused
    Attended attended = FullAttention{};
    bool pools = false;
};

/// DecodeSelect, then DecodeAttend. `attend` may name another tensor of chosen blocks than `select` writes; then the
/// operation just before this one must not write it, as a fused kernel may read it early.
struct DecodeSparse {
    static constexpr char const* kName = "decode_sparse";
    DecodeSelect select;
    DecodeAttend attend;
};

/// Draws one token per sequence from its logits. Only ids below `allowed` may be drawn. A drawn token is marked as
/// seen.
struct SampleTokens {
    static constexpr char const* kName = "sample_tokens";
    TensorView ids_S;  ///< int32; -1 if the rule draws nothing, or if a GPU leaves the draw to the host: more than
                       ///< 4,096 tokens may be drawn, or a logit is not a number, for which the host's operation throws
    ConstView logits_SV;
    ConstView rules_SB;       ///< u8: one DrawRule per sequence
    TensorView seen_SW = {};  ///< int32: bit id % 32 of word id / 32; empty if no rule has a penalty
    int64_t allowed = 0;
};

}  // namespace perigee
