// Whether an implementation of full attention computes what the oracle computes, the host's operations in fp64, on a
// small pack of documents: what a library is asked before its results are trusted.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <string>

#include "base/error.h"
#include "ops/ops.h"

namespace perigee {

/// Borders of documents longer than a tile and shorter, of one token, empty; and of documents of two tiles each.
constexpr std::array<int32_t, 6> kRaggedDocuments = {0, 1, 151, 151, 188, 192};
constexpr std::array<int32_t, 3> kEqualDocuments = {0, 256, 512};

struct AttentionShape {
    int64_t heads;
    int64_t kv_heads;
    int64_t head_dim;
    double scale;
    std::span<int32_t const> documents = kRaggedDocuments;
    int64_t tokens() const { return documents.back(); }
};

/// An implementation that cannot be used for a problem: it refuses it, or its results are wrong.
class UnusableAttention : public Error {
  public:
    explicit UnusableAttention(std::string const& message) : Error(Category::internal, message) {}
};

/// The implementation: either pass, or both. Tensors are on its device, inputs and outputs of `compute` but for lse.
struct AttentionPasses {
    DType compute;
    std::function<void(AttentionForward const&)> forward = {};
    std::function<void(AttentionBackward const&)> backward = {};
};

/// Largest error of any result in any document, relative to the root mean square of that result over all documents. The
/// backward is given the oracle's o and lse. Throws UnusableAttention, naming `name`, the result, the document and the
/// shape, where the error is above 2%, which is several times what bf16 makes of it, or not a number. Whatever the
/// passes and the device throw goes through.
double check_attention(Device& device, AttentionShape const& shape, AttentionPasses const& passes,
                       std::string const& name);

}  // namespace perigee
