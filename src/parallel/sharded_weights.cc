#include "parallel/sharded_weights.h"

#include <algorithm>

namespace perigee {

ShardedWeights::ShardedWeights(ParamLayout const& layout, Sharding const& sharding, Mesh const& mesh, Ops& ops)
    : layout_(&layout),
      sharding_(&sharding),
      comm_(&mesh.dp_cp_gather()),
      device_(&ops.device()),
      slots_(layout, *comm_, ops.device(), ops.compute_dtype(), false),
      gathers_(static_cast<size_t>(layout.units())) {
    int64_t const elements = sharded() ? sharding.updated_elements() : layout.size();
    memory_ = comm_->allocate(*device_, static_cast<size_t>(elements * size_of(ops.compute_dtype())));
    held_ = {static_cast<std::byte*>(memory_.data()), ops.compute_dtype(), {elements}};
    ops.fill_zero(held_);
}

TensorView ShardedWeights::need(int unit, int next) {
    if (is_empty(unit)) return held_.rows(0, 0);
    if (next >= 0 && is_empty(next)) next = -1;
    if (sharded()) {
        if (slots_.find(unit) == nullptr) gather_into_slot(unit);
        ++slots_.find(unit)->users;
        if (next >= 0 && slots_.find(next) == nullptr) gather_into_slot(next);
    }
    if (Pending const gather = std::exchange(gathers_[static_cast<size_t>(unit)], {}); gather.point() != nullptr) {
        InPhase const waiting(device_->queue(), Phase::communication, static_cast<int>(Axis::data_context));
        device_->queue().wait(gather);
    }
    FlatRange const range = layout_->unit(unit);
    return sharded() ? slots_.find(unit)->view.rows(0, range.size()) : held_.rows(range.begin, range.end);
}

void ShardedWeights::release(int unit) {
    if (!sharded() || is_empty(unit)) return;
    UnitSlots::Slot* const slot = slots_.find(unit);
    PERIGEE_CHECK(slot != nullptr && slot->users > 0, "unit {} is released and was not needed", unit);
    --slot->users;  // first: what follows may throw
    slot->done = device_->queue().record();
}

bool ShardedWeights::settled() const {
    return !sharded() && std::ranges::all_of(gathers_, [](Pending const& gather) { return gather.point() == nullptr; });
}

void ShardedWeights::gather_into_slot(int unit) {
    UnitSlots::Slot& slot = slots_.take(unit);
    Queue& lane = device_->lane("weights");
    lane.wait(slot.done);
    gathers_[static_cast<size_t>(unit)] = gather(unit, slot.view.rows(0, layout_->unit(unit).size()));
}

Pending ShardedWeights::gather(int unit, TensorView to) {
    Queue& lane = device_->lane("weights");
    int64_t const origin = layout_->unit(unit).begin;
    auto const [first, last] = sharding_->buckets.of_unit(unit);
    Pending latest;
    for (int64_t bucket = first; bucket < last; ++bucket) {
        FlatRange const all = sharding_->buckets.range(bucket), mine = sharding_->buckets.share(bucket, comm_->rank());
        TensorView const values = to.rows(all.begin - origin, all.end - origin);
        int64_t const packed = sharding_->packed_begins[static_cast<size_t>(bucket)];
        TensorView const part =
            sharded() ? held_.rows(packed, packed + mine.size()) : to.rows(mine.begin - origin, mine.end - origin);
        latest = comm_->all_gather(lane, values, part);
    }
    return latest;
}

void ShardedWeights::changed(int unit) {
    if (sharding_->stage == ShardStage::none) return;
    device_->lane("weights").wait(device_->queue().record());
    if (sharded()) return slots_.forget();
    FlatRange const range = layout_->unit(unit);
    gathers_[static_cast<size_t>(unit)] = gather(unit, held_.rows(range.begin, range.end));
}

void ShardedWeights::loaded() {
    if (!sharded()) return;
    device_->lane("weights").wait(device_->queue().record());
    slots_.forget();
}

std::vector<FlatPart> ShardedWeights::parts() const {
    return sharded() ? updated() : std::vector<FlatPart>{{layout_->whole(), held_}};
}

std::vector<FlatPart> ShardedWeights::updated() const { return sharding_->updated(held_, sharded()); }

TensorView ShardedWeights::flat() const {
    PERIGEE_CHECK(!sharded(), "the whole weights of a rank that holds its shares");
    return held_;
}

int64_t ShardedWeights::bytes() const { return held_.bytes() + slots_.bytes(); }

bool ShardedWeights::holds(void const* address) const {
    auto const* const place = static_cast<std::byte const*>(address);
    return (held_.data <= place && place < held_.data + held_.bytes()) || slots_.holds(address);
}

}  // namespace perigee
