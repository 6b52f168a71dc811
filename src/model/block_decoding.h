// One transformer block for the newest token of each of S texts, on one tp rank: seven operations, of which each reads
// its weights or its part of the cache once.
#pragma once

#include "model/block.h"

namespace perigee {

/// Where attention over a cache works.
struct CacheAttention {
    TensorView o_SHK;
    ConstView q_SHK;
    TensorView chosen_SHS;  ///< of block-sparse layers
    bool pools = false;     ///< as in DecodeAttend
};
/// Selects blocks, and attends them: keys and values of the newest tokens are in the cache.
void attend_cache(Ops& ops, Decoding const& decoding, CacheAttention const& x, Selection const& selection);

/// Memory that all blocks use in turn.
struct DecodeTensors {
    TensorView x_SD;  ///< the stream
    TensorView q_SHK;
    TensorView o_SHK;
    TensorView chosen_C;  ///< of the layer with the most slots
    TensorView y_SF;
    ConstView cos_SR;
    ConstView sin_SR;
};
/// For `rows` texts and these layers.
DecodeTensors allocate_decoding(Arena& arena, Ops& ops, ModelOptions const& options, int64_t rows,
                                std::span<Selection const> selections);

/// x += attention(norm(x)), then x += SwiGLU(norm(x)). Of weights without adapters.
void block_decode(Ops& ops, ModelOptions const& options, BlockTensors const& weights, DecodeTensors const& tensors,
                  Decoding const& decoding, Selection const& selection);

}  // namespace perigee
