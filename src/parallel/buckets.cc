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

Ownership resolve_ownership(ParamLayout const& layout, Buckets const& buckets, Mesh const& mesh, ShardStage stage) {
    auto const shares = buckets.shares(mesh.dp_cp().rank());
    return {.owned = mesh.tp_rank() == 0 ? shares : without_uncut(shares, layout),
            .updated = stage == ShardStage::none ? std::vector{layout.whole()} : shares};
}

ShardStage resolve_stage(ShardStage wanted, int ranks) {
    if (ranks == 1) return ShardStage::none;
    return wanted == ShardStage::automatic ? ShardStage::optimizer : wanted;
}

}  // namespace

Buckets::Buckets(ParamLayout const& layout, int64_t target, int ranks) : ranks_(ranks) {
    PERIGEE_CHECK(target > 0 && ranks > 0, "buckets of {} elements for {} ranks", target, ranks);
    int64_t const multiple = unit_multiple(ranks);
    int64_t const step = std::max(target / multiple * multiple, multiple);
    for (int unit = 0; unit < layout.units(); ++unit) {
        auto const [begin, end] = layout.unit(unit);
        PERIGEE_CHECK((end - begin) % multiple == 0, "a unit of {} elements for {} ranks", end - begin, ranks);
        int64_t const first = std::ssize(begins_);
        for (int64_t at = begin; at < end; at += step) begins_.push_back(at);
        units_.push_back({first, std::ssize(begins_)});
    }
    begins_.push_back(layout.size());
}

FlatRange Buckets::range(int64_t bucket) const {
    auto const i = static_cast<size_t>(bucket);
    return {begins_.at(i), begins_.at(i + 1)};
}

FlatRange Buckets::share(int64_t bucket, int rank) const {
    FlatRange const whole = range(bucket);
    int64_t const part = whole.size() / ranks_;
    return {whole.begin + rank * part, whole.begin + (rank + 1) * part};
}

std::vector<FlatRange> Buckets::shares(int rank) const {
    std::vector<FlatRange> ranges;
    for (int64_t b = 0; b < count(); ++b) append(ranges, share(b, rank));
    return ranges;
}

Sharding::Sharding(ParamLayout const& layout, Mesh const& mesh, ShardStage wanted, int64_t bucket_elements)
    : stage(resolve_stage(wanted, mesh.dp_cp().size())),
      buckets(layout, bucket_elements, mesh.dp_cp().size()),
      ownership(resolve_ownership(layout, buckets, mesh, stage)) {
    int64_t begin = 0;
    for (int64_t b = 0; b < buckets.count(); ++b) {
        packed_begins.push_back(begin);
        begin += buckets.share(b, 0).size();
    }
}

Sharding::Sharding(ParamLayout const& layout, Mesh const& mesh, ParallelOptions const& options)
    : Sharding(layout, mesh, options.shard, (options.bucket_mib << 20) / size_of(DType::f32)) {}

int64_t Sharding::updated_elements() const {
    int64_t elements = 0;
    for (FlatRange const& range : ownership.updated) elements += range.size();
    return elements;
}

std::vector<FlatPart> Sharding::updated(TensorView memory, bool packed) const {
    std::vector<FlatPart> parts;
    int64_t before = 0;  // elements of earlier ranges
    for (FlatRange const& range : ownership.updated) {
        FlatRange const at = packed ? FlatRange{before, before + range.size()} : range;
        parts.push_back({range, memory.rows(at.begin, at.end)});
        before += range.size();
    }
    return parts;
}

}  // namespace perigee
