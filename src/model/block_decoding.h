// Decoding step of one transformer block, for the newest token of each of S texts, on one tp rank. Five operations;
// each reads its weights or its part of the cache once.
#pragma once

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

/// x += attention(norm(x)), then x += SwiGLU(norm(x)). For weights without adapters.
void block_decode(Ops& ops, ModelOptions const& options, BlockTensors const& weights, DecodeTensors const& tensors,
                  Decoding const& decoding, Selection const& selection);

}  // namespace perigee
