// Arguments of all kernels that score blocks.
#pragma once

#include "kernels/decode/decode.h"

namespace perigee::decode {

constexpr int kScoreThreads = 128;
constexpr int kScoreBlocks = 64;  ///< candidates of a thread block

struct ScoreArgs {
    Cache cache;
    bf16 const* q;
    float* scores;      ///< [S, H, most_blocks()]; heads that share a selection store their sum at the first head
    int32_t* chosen;    ///< [S, H, slots]
    unsigned* arrived;  ///< [S, G]: thread blocks that have written their scores; zero before and after
    int32_t heads, group, slots;
    int32_t summed;  ///< heads that share a selection
    bool force_previous, force_first;
};

ScoreArgs score_args(Select const& select, MobaOptions const& options);

void score_sm80(ScoreArgs const& args, cudaStream_t stream);
void score_sm90(ScoreArgs const& args, cudaStream_t stream);

}  // namespace perigee::decode
