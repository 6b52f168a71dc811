// The order of a pack's tiles: query tiles of the forward, KV tiles of the backward. Longest documents first; of a
// document, as many heads at a time as the L2 cache has room for; of those, the tiles with the most work first. Thread
// blocks, or clusters of them, take tiles one by one from a counter, so the last ones are short.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perigee::dense {

/// A document's queries inside the range that the launch computes.
struct Document {
    int32_t begin;  ///< first token of the document
    int32_t end;    ///< its last token + 1
    int32_t first;  ///< first query, as a token
    int32_t past;   ///< last query + 1
    int32_t heads_at_once;
};

/// What thread blocks look tiles up in.
struct Schedule {
    int32_t* counter;     ///< tiles taken
    int32_t* first_tile;  ///< [documents + 1]: tiles of one head before each document's
    Document* documents;  ///< longest first
    int32_t count;        ///< of documents
    int32_t heads;        ///< query, key/value, or pairs of query heads: what has tiles of its own, or pairs of tiles
    int32_t parts = 1;    ///< of a tile: the walker finds all tiles for one part, then for the next
};

/// Where they lie in memory.
struct ScheduleLayout {
    size_t first_tile, documents, bytes;

    constexpr explicit ScheduleLayout(int64_t count)
        : first_tile(256),
          documents(first_tile + (static_cast<size_t>(count + 1) * sizeof(int32_t) + 255) / 256 * 256),
          bytes(documents + static_cast<size_t>(count) * sizeof(Document)) {}
};
constexpr size_t schedule_bytes(int64_t documents) { return ScheduleLayout(documents).bytes; }

}  // namespace perigee::dense
