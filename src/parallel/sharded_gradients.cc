#include "parallel/sharded_gradients.h"

#include <algorithm>

#include "parallel/sequence.h"

namespace perigee {

namespace {

/// Whether the first and the last unit are both large: a model whose classifier is its embedding has a small head, and
/// works on both at once.
bool ends_are_alike(ParamLayout const& layout) {
    return 2 * layout.unit(layout.units() - 1).size() > layout.unit(0).size();
}

}  // namespace

ShardedGradients::ShardedGradients(ParamLayout const& layout, Sharding const& sharding, Mesh const& mesh, Ops& ops)
    : layout_(&layout),
      sharding_(&sharding),
      mesh_(&mesh),
      ops_(&ops),
      slots_(layout, mesh.dp_cp(), ops.device(), ops.main_dtype(), ends_are_alike(layout)) {
    int64_t const elements = sharded() ? sharding.updated_elements() : layout.size();
    auto const bytes = static_cast<size_t>(elements * size_of(ops.main_dtype()));
    // NCCL's sums over all ranks are faster in ordinary memory, and the same as those of ranks that share a GPU.
    memory_ =
        sharding.stage == ShardStage::none ? Buffer(ops.device(), bytes) : mesh.dp_cp().allocate(ops.device(), bytes);
    held_ = {static_cast<std::byte*>(memory_.data()), ops.main_dtype(), {elements}};
    // What belongs to no tensor stays zero: norms count it.
    ops.fill_zero(held_);
}

void ShardedGradients::begin_pass(bool first, bool last) {
    first_ = first;
    last_ = last;
}

TensorView ShardedGradients::begin(int unit) {
    FlatRange const range = layout_->unit(unit);
    if (!sharded()) return held_.rows(range.begin, range.end);
    UnitSlots::Slot& slot = slots_.take(unit);
    slot.users = 1;
    {
        InPhase const waiting(ops_->device().queue(), Phase::communication, static_cast<int>(Axis::data_context));
        ops_->device().queue().wait(std::exchange(slot.done, {}));
    }
    add_sums(slot.view);
    FlatRange const gap = layout_->gap(unit);
    if (gap.size() > 0) ops_->fill_zero(slot.view.rows(gap.begin - range.begin, gap.end - range.begin));
    return slot.view.rows(0, range.size());
}

void ShardedGradients::done(int unit) {
    FlatRange const range = layout_->unit(unit);
    UnitSlots::Slot* const slot = sharded() ? slots_.find(unit) : nullptr;
    if (!sharded() && !last_) return;
    TensorView const values = slot != nullptr ? slot->view.rows(0, range.size()) : held_.rows(range.begin, range.end);
    add_up_uncut(*layout_, unit, values, *ops_, mesh_->tp());
    if (mesh_->dp_cp().size() > 1) reduce(unit, values);
    if (slot == nullptr) return;
    slot->users = 0;
    slot->unit = -1;  // what it held is summed and of no use any more
    slot->done = latest_;
}

void ShardedGradients::reduce(int unit, TensorView values) {
    Comm& comm = mesh_->dp_cp();
    Queue& lane = ops_->device().lane("sums");
    lane.wait(ops_->device().queue().record());
    int64_t const origin = layout_->unit(unit).begin;
    auto const [first, last] = sharding_->buckets.of_unit(unit);
    for (int64_t bucket = first; bucket < last; ++bucket) {
        FlatRange const all = sharding_->buckets.range(bucket), mine = sharding_->buckets.share(bucket, comm.rank());
        TensorView const of_all = values.rows(all.begin - origin, all.end - origin);
        if (sharding_->stage == ShardStage::none) {
            latest_ = comm.all_reduce(lane, of_all);
            continue;
        }
        TensorView const in_place = values.rows(mine.begin - origin, mine.end - origin);
        bool const adds = sharded() && !first_;
        latest_ = comm.reduce_scatter(lane, sharded() && first_ ? share(bucket) : in_place, of_all);
        if (adds) sums_.push_back({in_place, share(bucket)});
    }
}

TensorView ShardedGradients::share(int64_t bucket) const {
    int64_t const begin = sharding_->packed_begins[static_cast<size_t>(bucket)];
    return held_.rows(begin, begin + sharding_->buckets.share(bucket, 0).size());
}

void ShardedGradients::add_sums(TensorView memory) {
    std::erase_if(sums_, [&](Sum const& sum) {
        if (sum.part.data < memory.data || sum.part.data >= memory.data + memory.bytes()) return false;
        ops_->add(sum.accumulated, sum.part);
        return true;
    });
}

bool ShardedGradients::settled() const {
    bool const alone = mesh_->dp_cp().size() == 1 && mesh_->tp().size() == 1;
    return alone || (!sharded() && !last_);
}

void ShardedGradients::await() {
    InPhase const waiting(ops_->device().queue(), Phase::communication, static_cast<int>(Axis::data_context));
    ops_->device().queue().wait(std::exchange(latest_, {}));
    for (Sum const& sum : std::exchange(sums_, {})) ops_->add(sum.accumulated, sum.part);
}

std::vector<FlatPart> ShardedGradients::updated() const { return sharding_->updated(held_, sharded()); }

TensorView ShardedGradients::flat() const {
    PERIGEE_CHECK(!sharded(), "the whole gradients of a rank that holds its shares");
    return held_;
}

int64_t ShardedGradients::bytes() const { return held_.bytes() + slots_.bytes(); }

bool ShardedGradients::holds(void const* address) const {
    auto const* const place = static_cast<std::byte const*>(address);
    return (held_.data <= place && place < held_.data + held_.bytes()) || slots_.holds(address);
}

}  // namespace perigee
