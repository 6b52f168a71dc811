// The blocks of all documents, worked out on the device from the documents' borders.
#include <algorithm>

#include "kernels/block_sparse_attention/stages.h"
#include "kernels/common/documents.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/common/scan.cuh"

namespace perigee::block_sparse {
namespace {

using namespace kernels;

struct TableArgs : BlockTable {
    int32_t const* cu_seqlens;
    int32_t documents, tokens, capacity, block_size;
};

__global__ void __launch_bounds__(kScanThreads) count_blocks(TableArgs const a) {
    start_early();
    exclusive_scan(
        a.documents,
        [&](int d) {
            int32_t const length = a.cu_seqlens[d + 1] - a.cu_seqlens[d];
            return length > 0 ? (length - 1) / a.block_size + 1 : 0;
        },
        a.first);
}

__global__ void __launch_bounds__(256) fill_table(TableArgs const a) {
    start_early();
    int const i = static_cast<int>(blockIdx.x) * 256 + static_cast<int>(threadIdx.x);
    if (i < a.tokens) {
        int const d = find_document(a.cu_seqlens, a.documents, i);
        int32_t const begin = a.cu_seqlens[d], end = a.cu_seqlens[d + 1], at = (i - begin) / a.block_size;
        int32_t const block = a.first[d] + at;
        a.block_of[i] = block;
        if (i == begin + at * a.block_size)
            a.blocks[block] = {i, end - i > a.block_size ? i + a.block_size : end, a.first[d], d};
    }
    if (i < a.capacity && i >= a.first[a.documents]) a.blocks[i] = {0, 0, 0, 0};
}

}  // namespace

void build_block_table(BlockTable const& table, BlockSparseShape const& shape, int64_t capacity,
                       int32_t const* cu_seqlens, cudaStream_t stream) {
    auto const narrow = [](int64_t x) { return static_cast<int32_t>(std::min<int64_t>(x, int64_t{1} << 30)); };
    TableArgs const args{
        table, cu_seqlens, narrow(shape.documents), narrow(shape.tokens), narrow(capacity), narrow(shape.block_size)};
    launch({.name = "count_blocks", .grid = {1}, .threads = kScanThreads, .stream = stream, .early = true},
           count_blocks, args);
    launch(
        {.name = "fill_table", .grid = {ceil_div(shape.tokens, 256)}, .threads = 256, .stream = stream, .early = true},
        fill_table, args);
}

}  // namespace perigee::block_sparse
