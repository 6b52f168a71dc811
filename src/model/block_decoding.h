// Decoding step of one transformer block, for the newest token of each of S texts, on one tp rank. Each
// operation reads its weights or its part of the cache once.
#pragma once

#include <optional>

#include "model/block.h"

namespace perigee {

/// Inputs and outputs of attention over a cache.
struct CacheAttention {
    TensorView o_SHK;
    ConstView q_SHK;
    TensorView chosen_SHS;  ///< block-sparse layers only
    bool pools = false;     ///< as in DecodeAttend
};
/// Selects blocks and attends to them. Keys and values of the newest tokens must be in the cache.
void attend_cache(Ops& ops, Decoding const& decoding, CacheAttention const& x, Selection const& selection);

/// Buffers that all blocks use in turn.
struct DecodeTensors {
    TensorView x_SD;  ///< the residual stream
    TensorView q_SHK;
    TensorView o_SHK;
    TensorView chosen_C;  ///< large enough for the layer with the most slots
    TensorView y_SF;
    ConstView cos_SR;
    ConstView sin_SR;
};
/// For `rows` texts and the layers of `selections`.
DecodeTensors allocate_decoding(Arena& arena, Ops& ops, ModelOptions const& options, int64_t rows,
                                std::span<Selection const> selections);

/// Queries, keys and values of a block's input: what block_decode() begins with.
DecodeQkv decode_qkv(ModelOptions const& options, BlockTensors const& weights, DecodeTensors const& tensors,
                     Decoding const& decoding);

struct BlockDecoding {
    Decoding decoding;
    Selection selection;
    std::optional<DecodeQkv> next = std::nullopt;  ///< of the next block, if it is to be computed here
};
/// x += attention, then x += SwiGLU(norm(x)). Needs the block's decode_qkv(). For weights without adapters.
void block_decode(Ops& ops, ModelOptions const& options, BlockTensors const& weights, DecodeTensors const& tensors,
                  BlockDecoding const& block);

}  // namespace perigee
