// Whether an implementation of full attention computes what the oracle computes, the host's operations in fp64, on a
// small pack of ragged documents: what a library is asked before its results are trusted.
#pragma once

#include <functional>
#include <string>

#include "ops/ops.h"

namespace perigee {

struct AttentionShape {
    int64_t heads;
    int64_t kv_heads;
    int64_t head_dim;
    double scale;
};

/// The implementation: either pass, or both. Tensors are on its device, inputs and outputs of `compute` but for lse.
struct AttentionPasses {
    DType compute;
    std::function<void(AttentionForward const&)> forward = {};
    std::function<void(AttentionBackward const&)> backward = {};
};

/// Largest error of any result in any document, relative to the root mean square of that result over all documents. The
/// backward is given the oracle's o and lse. Throws Category::internal, naming `name`, the result, the document and the
/// shape, where the error is above 2%, which is several times what bf16 makes of it, or not a number.
double check_attention(Device& device, AttentionShape const& shape, AttentionPasses const& passes,
                       std::string const& name);

}  // namespace perigee
