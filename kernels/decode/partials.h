// Arguments of attention, whose kernels write partial results and merge them.
#pragma once

#include "kernels/decode/decode.h"

namespace perigee::decode {

struct AttendArgs {
    Cache cache;
    bf16 const* q;
    bf16* o;
    int32_t const* chosen;  ///< [S, H, slots]
    float* partial;         ///< [S, H, most_splits, K]
    float* partial_lse;     ///< [S, H, most_splits], base 2
    int32_t* counts;        ///< [S, G]: number of splits
    int32_t heads, group, slots;
    int32_t listed;  ///< slots per group: group * slots
    int32_t splits_per_block;
    int32_t most_splits;  ///< per sequence and KV head
    bool all, pools;
    float scale_log2;
};

AttendArgs attend_args(Attend const& attend);

/// Merges the partial results into o.
void merge(AttendArgs const& args, cudaStream_t stream);

}  // namespace perigee::decode
