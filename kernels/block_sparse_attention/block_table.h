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

}  // namespace perigee::block_sparse
