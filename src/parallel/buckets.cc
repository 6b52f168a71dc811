#include "parallel/buckets.h"

#include <algorithm>

namespace perigee {

namespace {

void append(std::vector<FlatRange>& ranges, FlatRange next) {
    if (next.size() == 0) return;
    if (!ranges.empty() && ranges.back().end == next.begin)
        ranges.back().end = next.end;
    else
        ranges.push_back(next);
}

/// `ranges` without the parameters that every tp rank holds whole.
std::vector<FlatRange> without_uncut(std::vector<FlatRange> const& ranges, ParamLayout const& layout) {
    std::vector<FlatRange> kept;
    for (FlatRange const& range : ranges) {
        for (ParamLayout::Entry const& entry : layout.entries()) {
            if (entry.spec.cut == Cut::whole) continue;
            int64_t const begin = std::max(range.begin, entry.offset);
            int64_t const end = std::min(range.end, entry.offset + entry.local.size());
            if (begin < end) append(kept, {begin, end});
        }
    }
    return kept;
}

}  // namespace

Buckets::Buckets(int64_t size, int64_t target, int ranks) : ranks_(ranks) {
    PERIGEE_CHECK(size >= 0 && target > 0 && ranks > 0, "{} elements in buckets of {} for {} ranks", size, target,
                  ranks);
    int64_t const even = size - size % ranks;
    int64_t const step = std::max<int64_t>(target - target % ranks, ranks);
    for (int64_t begin = 0; begin < even; begin += step) begins_.push_back(begin);
    if (even < size) begins_.push_back(even);
    begins_.push_back(size);
}

FlatRange Buckets::range(int64_t bucket) const {
    auto const i = static_cast<size_t>(bucket);
    return {begins_.at(i), begins_.at(i + 1)};
}

FlatRange Buckets::share(int64_t bucket, int rank) const {
    FlatRange const whole = range(bucket);
    if (!divides(bucket)) return rank == 0 ? whole : FlatRange{whole.end, whole.end};
    int64_t const part = whole.size() / ranks_;
    return {whole.begin + rank * part, whole.begin + (rank + 1) * part};
}

int64_t Buckets::largest_share() const { return count() > 0 ? share(0, 0).size() : 0; }

std::vector<FlatRange> Buckets::shares(int rank) const {
    std::vector<FlatRange> ranges;
    for (int64_t b = 0; b < count(); ++b) append(ranges, share(b, rank));
    return ranges;
}

Buckets make_buckets(ParallelOptions const& options, ParamLayout const& layout, MeshShape const& shape) {
    return {layout.size(), (options.bucket_mib << 20) / size_of(DType::f32), shape.dp * shape.cp};
}

Ownership resolve_ownership(ParamLayout const& layout, Buckets const& buckets, Mesh const& mesh, bool zero) {
    auto const shares = buckets.shares(mesh.dp_cp().rank());
    return {.owned = mesh.tp_rank() == 0 ? shares : without_uncut(shares, layout),
            .updated = zero ? shares : std::vector{layout.whole()}};
}

Replicas::Replicas(ParamLayout const& layout, Buckets buckets, Mesh const& mesh, bool zero, Device& device)
    : buckets_(std::move(buckets)),
      sums_comm_(&mesh.dp_cp()),
      gather_comm_(&mesh.dp_cp_gather()),
      device_(&device),
      zero_(zero && sums_comm_->size() > 1),
      ownership_(resolve_ownership(layout, buckets_, mesh, zero_)),
      pending_(buckets_.count()) {}

void Replicas::reduce_from(TensorView grads, int64_t begin) {
    while (pending_ > 0 && buckets_.range(pending_ - 1).begin >= begin) reduce(grads, --pending_);
    if (pending_ == 0) pending_ = buckets_.count();
}

void Replicas::reduce(TensorView grads, int64_t bucket) {
    if (sums_comm_->size() == 1) return;
    FlatRange const all = buckets_.range(bucket);
    TensorView const values = grads.rows(all.begin, all.end);
    Queue& lane = device_->lane("sums");
    lane.wait(device_->queue().record());
    if (!zero_ || !buckets_.divides(bucket)) {
        sums_.push_back(sums_comm_->all_reduce(lane, values));
    } else {
        FlatRange const mine = buckets_.share(bucket, sums_comm_->rank());
        sums_.push_back(sums_comm_->reduce_scatter(lane, grads.rows(mine.begin, mine.end), values));
    }
}

void Replicas::await_sums() {
    InPhase const waiting(device_->queue(), Phase::communication);
    for (Pending const& sum : sums_) device_->queue().wait(sum);
    sums_.clear();
}

void Replicas::gather(TensorView weights) {
    if (!zero_) return;
    Queue& lane = device_->lane("weights");
    lane.wait(device_->queue().record());
    for (int64_t bucket = 0; bucket < buckets_.count(); ++bucket) {
        FlatRange const all = buckets_.range(bucket);
        TensorView const values = weights.rows(all.begin, all.end);
        if (!buckets_.divides(bucket)) {
            gathers_.push_back(gather_comm_->broadcast(lane, values, 0));
        } else {
            FlatRange const mine = buckets_.share(bucket, gather_comm_->rank());
            gathers_.push_back(gather_comm_->all_gather(lane, values, weights.rows(mine.begin, mine.end)));
        }
    }
}

void Replicas::await_weights() {
    InPhase const waiting(device_->queue(), Phase::communication);
    for (Pending const& gather : gathers_) device_->queue().wait(gather);
    gathers_.clear();
}

}  // namespace perigee
