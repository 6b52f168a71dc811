// What attention's kernel leaves and the merge takes.
#pragma once

#include "kernels/decode/decode.h"

namespace perigee::decode {

struct AttendArgs {
    Cache cache;
    bf16 const* q;
    bf16* o;
    int32_t const* chosen;  ///< [S, H, slots]
    float* partial;         ///< [S, H, most_splits, K]
    float* partial_lse;     ///< [S, H, most_splits], in base 2
    int32_t* counts;        ///< [S, G]: splits
    int32_t heads, group, slots;
    int32_t listed;  ///< slots of a group: group * slots
    int32_t splits_per_block;
    int32_t most_splits;  ///< of a sequence and key/value head
    bool all, pools;
    float scale_log2;
};

/// o from the partial results.
void merge(AttendArgs const& args, cudaStream_t stream);

}  // namespace perigee::decode
