#include "parallel/sequence.h"

namespace perigee {

TensorView SequenceParallel::gather(TensorView part_PD) const {
    if (alone()) return part_PD;
    tp_->all_gather(ops_->device().queue(), whole(part_PD), part_PD);
    return whole(part_PD);
}

void SequenceParallel::add_up(TensorView part_PD) const {
    if (!alone()) tp_->reduce_scatter(ops_->device().queue(), part_PD, whole(part_PD));
}

void add_up_uncut(ParamLayout const& layout, int unit, TensorView grads, Ops& ops, Comm& tp) {
    if (tp.size() == 1) return;
    Queue& queue = ops.device().queue();
    int64_t const origin = layout.unit(unit).begin;
    tp.group(queue, [&] {
        for (ParamLayout::Entry const& entry : layout.entries_of(unit))
            if (entry.spec.cut == Cut::whole)
                tp.all_reduce(queue, grads.rows(entry.offset - origin, entry.offset - origin + entry.local.size()));
    });
}

}  // namespace perigee
