// The blocks of all documents, computed on the device from cu_seqlens. Shared by attention and selections.
#pragma once

#include <driver_types.h>

#include "kernels/block_sparse_attention/plan.h"

namespace perigee::block_sparse {

/// Tokens [begin, end) of a document whose first block is `first`. Entries beyond the last block are zero.
struct alignas(16) Block {
    int32_t begin;
    int32_t end;
    int32_t first;
    int32_t document;
};

struct BlockTable {
    int32_t* first;     ///< [documents + 1]: first block of each document, then the number of blocks
    Block* blocks;      ///< [capacity]
    int32_t* block_of;  ///< [T]: block of each token
};

/// `capacity`: entries of table.blocks.
void build_block_table(BlockTable const& table, BlockSparseShape const& shape, int64_t capacity,
                       int32_t const* cu_seqlens, cudaStream_t stream);

/// Calls f.operator()<D>() for the head size; plan_attention has refused all others.
template <class F>
void with_head_dim(int64_t head_dim, F f) {
    switch (head_dim) {
        case 32:
            return f.template operator()<32>();
        case 64:
            return f.template operator()<64>();
        case 96:
            return f.template operator()<96>();
        default:
            return f.template operator()<128>();
    }
}
/// The same for the head sizes of the sm90 kernels.
template <class F>
void with_sm90_head_dim(int64_t head_dim, F f) {
    return head_dim == 64 ? f.template operator()<64>() : f.template operator()<128>();
}

}  // namespace perigee::block_sparse
