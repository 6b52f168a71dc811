// Ranges of tokens, and how attention cuts them into pieces of work.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace perigee::host {

/// Tokens [begin, end) of the pack.
struct Segment {
    int64_t begin = 0;
    int64_t end = 0;
};

/// The tokens whose queries an operation is given.
Segment queries_of(auto const& args) { return {args.query_begin, args.query_begin + args.q_THK[0]}; }

/// One segment per document, empty ones included.
std::vector<Segment> documents(std::span<int32_t const> cu_seqlens);

/// The queries [begin, end) of the `index`-th tile of kTileRows tokens of a segment.
struct Piece {
    int64_t segment = 0;  ///< its place in the list of segments
    int64_t segment_begin = 0;
    int64_t begin = 0;
    int64_t end = 0;
    int64_t index = 0;

    /// First token of the tile; before `begin` where the queries start inside it.
    int64_t tile_begin() const;
};

/// All `queries` that lie in a segment. Tiles are counted from the segment's first token, whether or not that is a
/// query. Pieces with the largest index come first: they see the most keys, and those with `index >= d` are the front
/// of the list.
std::vector<Piece> cut(std::vector<Segment> const& segments, Segment queries);

}  // namespace perigee::host
