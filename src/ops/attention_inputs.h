// What attention reads, for who looks at it on the host.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace perigee {

/// Queries and keys of one layer in host memory as attention reads them.
struct AttentionInputs {
    std::vector<float> q_THK = {}, k_TGK = {};
    Shape q_shape = {}, k_shape = {};
    int64_t first_head = 0;  ///< number of the first query head here among all of the model
    double scale = 0;        ///< of attention's scores
};

}  // namespace perigee
