// One packed micro-batch in host memory: documents laid end to end, each seen only by itself.
#pragma once

#include <cstdint>
#include <vector>

namespace perigee {

struct Batch {
    std::vector<int32_t> ids_T;        ///< tokens
    std::vector<int32_t> targets_T;    ///< the token to predict at each place; any valid id where the weight is 0
    std::vector<float> weights_T;      ///< loss weight of each place, >= 0; 0 masks it
    std::vector<int32_t> positions_T;  ///< position inside the document, for RoPE
    std::vector<int32_t> cu_seqlens;   ///< document borders: starts with 0, ends with T, never decreases
    int64_t first_token = 0;           ///< index of its first token in the global batch of a step

    int64_t tokens() const { return static_cast<int64_t>(ids_T.size()); }
};

}  // namespace perigee
