#include "kernels/dense_attention/plan.h"

#include <algorithm>
#include <limits>

#include "kernels/dense_attention/schedule.h"

namespace perigee {
namespace {

constexpr int64_t kKeys = 128, kPanel = 64;

/// Heads of other sizes gain nothing by parts (README.md), so the kernel has them for 128 alone.
int64_t parts_of(DenseAttentionShape const& shape) {
    if (shape.head_dim != 128 || shape.deterministic || shape.window > 0 || shape.documents == 0) return 1;
    int64_t const row_bytes = 8 * shape.head_dim * shape.group();  // q, do; dq's sum
    if (shape.tokens / shape.documents * row_bytes < shape.cached_bytes) return 1;
    return shape.group() % 2 == 0 && shape.group() > 2 ? shape.group() / 2 : shape.group();
}

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

DenseBackwardPlan::DenseBackwardPlan(DenseAttentionShape const& shape)
    : kv_tiles(shape.tokens / kKeys + shape.documents), parts(parts_of(shape)) {
    int64_t const head_rows = kv_tiles * kKeys * shape.group();
    int64_t const columns = (shape.head_dim + kPanel - 1) / kPanel * kPanel;  // of sums
    int64_t const dq_bytes = head_rows * columns * int64_t{sizeof(float)};
    int64_t const key_bytes = parts > 1 ? 2 * kv_tiles * kKeys * shape.head_dim * int64_t{sizeof(float)} : 0;
    int64_t const head_bytes = dq_bytes + key_bytes;
    pass_kv_heads = std::clamp<int64_t>(shape.sums_bytes / std::max<int64_t>(head_bytes, 1), 1, shape.kv_heads);
    int64_t const rows = head_rows * pass_kv_heads;
    stats = aligned(static_cast<int64_t>(dense::schedule_bytes(shape.documents)));
    turns = stats + aligned(2 * rows * int64_t{sizeof(float)});
    parts_done = turns + aligned(rows / 64 * int64_t{sizeof(int32_t)});
    sums = parts_done + aligned(kv_tiles * pass_kv_heads * int64_t{sizeof(int32_t)});
    key_sums = sums + dq_bytes * pass_kv_heads;
    scratch_bytes = key_sums + key_bytes * pass_kv_heads;
}

size_t dense_forward_scratch(DenseAttentionShape const& shape) { return dense::schedule_bytes(shape.documents); }
size_t dense_backward_scratch(DenseAttentionShape const& shape) {
    // Whether a KV tile has parts depends on how many documents the tokens are: the same tokens fit either way.
    DenseAttentionShape whole_groups = shape;
    whole_groups.cached_bytes = std::numeric_limits<int64_t>::max();
    return static_cast<size_t>(
        std::max(DenseBackwardPlan(shape).scratch_bytes, DenseBackwardPlan(whole_groups).scratch_bytes));
}

}  // namespace perigee
