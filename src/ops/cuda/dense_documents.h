// Which packs of documents have a plan of cuDNN's of their own. Pure arithmetic, needs no CUDA.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace perigee {

/// The length of all documents of a pack, where they are equal and worth a plan of their own; else 0. Plans take half a
/// second each and are kept, so there is one for every power of two from 512 on, and for 5/4, 6/4 and 7/4 of it: packs
/// of ever other lengths end up with few. All are multiples of 128, as cuDNN masks other lengths like ragged ones.
inline int64_t planned_length(std::span<int32_t const> cu_seqlens) {
    constexpr int64_t kShortest = 512;
    int64_t const documents = std::ssize(cu_seqlens) - 1, length = documents > 0 ? cu_seqlens[1] - cu_seqlens[0] : 0;
    if (length < kShortest) return 0;
    int64_t const quarter = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(length))) / 4;
    if (length % quarter != 0) return 0;
    for (int64_t d = 0; d <= documents; ++d)
        if (cu_seqlens[static_cast<size_t>(d)] != d * length) return 0;
    return length;
}

}  // namespace perigee
