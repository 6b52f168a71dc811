#include "ops/host/segments.h"

#include <algorithm>

#include "ops/host/tiles.h"

namespace perigee::host {

std::vector<Segment> documents(std::span<int32_t const> cu_seqlens) {
    std::vector<Segment> segments;
    for (size_t d = 0; d + 1 < cu_seqlens.size(); ++d) segments.push_back({cu_seqlens[d], cu_seqlens[d + 1]});
    return segments;
}

int64_t Piece::tile_begin() const { return segment_begin + index * kTileRows; }

std::vector<Piece> cut(std::vector<Segment> const& segments, Segment queries) {
    std::vector<Piece> pieces;
    for (int64_t s = 0; s < std::ssize(segments); ++s) {
        auto const [first, last] = segments[s];
        int64_t const end = std::min(last, queries.end);
        for (int64_t begin = std::max(first, queries.begin); begin < end; begin = pieces.back().end) {
            int64_t const index = (begin - first) / kTileRows;
            pieces.push_back({s, first, begin, std::min(first + (index + 1) * kTileRows, end), index});
        }
    }
    std::stable_sort(pieces.begin(), pieces.end(), [](Piece const& a, Piece const& b) { return a.index > b.index; });
    return pieces;
}

}  // namespace perigee::host
