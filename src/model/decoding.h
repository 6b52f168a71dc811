// Per-layer state of decoding.
#pragma once

#include "ops/decode_operations.h"

namespace perigee {

/// A layer's cache, for the newest token of each text.
struct Decoding {
    CachePages pages;
    ConstView lengths_S;  ///< int32: tokens before the newest; -1: no text
    int64_t first_head = 0;
    double scale = 0;
};

}  // namespace perigee
