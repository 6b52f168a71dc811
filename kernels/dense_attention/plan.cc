#include "kernels/dense_attention/plan.h"

#include <algorithm>

#include "kernels/dense_attention/schedule.h"

namespace perigee {
namespace {

constexpr int64_t kKeys = 128, kPanel = 64;

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

DenseBackwardPlan::DenseBackwardPlan(DenseAttentionShape const& shape)
    : kv_tiles(shape.tokens / kKeys + shape.documents) {
    int64_t const head_rows = kv_tiles * kKeys * shape.group();
    int64_t const columns = (shape.head_dim + kPanel - 1) / kPanel * kPanel;  // of sums
    int64_t const head_bytes = head_rows * columns * int64_t{sizeof(float)};
    pass_kv_heads = std::clamp<int64_t>(shape.sums_bytes / std::max<int64_t>(head_bytes, 1), 1, shape.kv_heads);
    int64_t const rows = head_rows * pass_kv_heads;
    stats = aligned(static_cast<int64_t>(dense::schedule_bytes(shape.documents)));
    turns = stats + aligned(2 * rows * int64_t{sizeof(float)});
    sums = turns + aligned(rows / 64 * int64_t{sizeof(int32_t)});
    scratch_bytes = sums + head_bytes * pass_kv_heads;
}

size_t dense_forward_scratch(DenseAttentionShape const& shape) { return dense::schedule_bytes(shape.documents); }
size_t dense_backward_scratch(DenseAttentionShape const& shape) {
    return static_cast<size_t>(DenseBackwardPlan(shape).scratch_bytes);
}

}  // namespace perigee
