// Walks the tiles of a pack in the order of schedule.h.
#pragma once

#include "kernels/common/reduce.cuh"
#include "kernels/dense_attention/schedule.h"

namespace perigee::dense {

/// Tokens [row, end) of the document that begins at `begin`, both counted from there, for one head.
struct Tile {
    int32_t head = -1;                    ///< -1: there are no more tiles
    int32_t begin = 0, document_end = 0;  ///< as tokens
    int32_t row = 0, end = 0;
    int32_t index = 0;  ///< among all tiles of a head
    int32_t part = 0;   ///< of the tile
};

/// Every lane of a warp walks. One walker per thread block; those of a cluster find the same tiles.
template <int kRows, bool kLateFirst>
class TileWalker {
  public:
    __device__ explicit TileWalker(Schedule const& s) : s_(s) {}

    __device__ Tile next() {
        int32_t item = 0;
        if (threadIdx.x % 32 == 0) item = take();
        return find(item);
    }
    /// One lane: claims a tile by its number.
    __device__ int32_t take() { return atomicAdd(s_.counter, 1); }
    /// The tile whose number lane 0 has. Called with growing numbers.
    __device__ Tile find(int32_t item) {
        item = __shfl_sync(kernels::kAllLanes, item, 0);
        if (item >= s_.first_tile[s_.count] * s_.heads * s_.parts) return {};
        seek(item);
        Document const& d = s_.documents[at_];
        int32_t const first = s_.first_tile[at_], tiles = s_.first_tile[at_ + 1] - first, at_once = d.heads_at_once;
        int32_t const in_document = item - first * s_.heads * s_.parts;
        int32_t const head = in_document / (tiles * at_once * s_.parts) * at_once;
        int32_t const heads = min(at_once, s_.heads - head), with_parts = in_document - head * tiles * s_.parts;
        Tile tile;
        tile.part = with_parts / (tiles * heads);
        int32_t const rest = with_parts - tile.part * tiles * heads;
        tile.head = head + rest % heads;
        tile.begin = d.begin, tile.document_end = d.end;
        int32_t const in_head = kLateFirst ? tiles - 1 - rest / heads : rest / heads;
        tile.index = first + in_head;
        tile.row = d.first - d.begin + in_head * kRows;
        tile.end = min(d.past - d.begin, tile.row + kRows);
        return tile;
    }

  private:
    /// On to the document that has the item, 32 at a time: items only grow.
    __device__ void seek(int32_t item) {
        for (int32_t count = 32; count == 32; at_ += count) {
            int32_t const later = at_ + 1 + static_cast<int32_t>(threadIdx.x % 32);
            bool const before = later < s_.count && s_.first_tile[later] * s_.heads * s_.parts <= item;
            count = __popc(__ballot_sync(kernels::kAllLanes, before));
        }
    }

    Schedule const& s_;
    int32_t at_ = 0;  ///< document
};

}  // namespace perigee::dense
