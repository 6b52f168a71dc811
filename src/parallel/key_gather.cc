#include "parallel/key_gather.h"

#include <utility>

namespace perigee {

namespace {

/// visit(range of the pack, row of its first token among the ranks' parts one after the other)
template <class Visit>
void each_range(ContextShard const& shard, Visit visit) {
    int64_t row = 0;
    for (int rank = 0; rank < shard.ranks(); ++rank)
        for (TokenRange const range : shard.ranges(rank)) {
            visit(range, row);
            row += range.size();
        }
}

}  // namespace

KeyGather::KeyGather(Ops& ops, Comm& cp, ContextShard const& shard, Shape const& all_TGK, Arena& arena)
    : ops_(&ops), cp_(&cp), shard_(shard) {
    DType const dtype = ops.compute_dtype();
    auto const shared = [&](char const* name) {
        auto const bytes = static_cast<size_t>(all_TGK.size() * size_of(dtype));
        return TensorView(cp.keep(ops.device(), name, bytes), dtype, all_TGK);
    };
    keys_.by_rank = shared("all k by rank"), values_.by_rank = shared("all v by rank");
    for (Tensor* const x : {&keys_, &values_})
        x->all = zigzag() ? arena.allocate("all of a pack", dtype, all_TGK, Use::communication) : x->by_rank;
}

Queue& KeyGather::lane() {
    Queue& lane = ops_->device().lane(kContextLane);
    lane.wait(ops_->device().queue().record());
    return lane;
}

void KeyGather::begin(ConstView k_TGK, ConstView v_TGK, int64_t group) {
    group_ = group;
    int64_t const rows = shard_.tokens(), begin = shard_.rank() * rows;
    for (auto const& [x, part] : {std::pair(&keys_, k_TGK), {&values_, v_TGK}})
        ops_->copy(x->by_rank.rows(begin, begin + rows), part);
    Queue& beside = lane();
    for (Tensor* const x : {&keys_, &values_}) {
        x->done = cp_->all_gather(beside, x->by_rank, x->by_rank.rows(begin, begin + rows));
        x->under_way = true;
    }
}

TensorView KeyGather::arrive(Tensor& x) {
    if (!std::exchange(x.under_way, false)) return x.all;
    Queue& queue = ops_->device().queue();
    {
        InPhase const waiting(queue, Phase::communication, static_cast<int>(cp_->axis()));
        queue.wait(std::exchange(x.done, {}));
    }
    if (zigzag())
        each_range(shard_, [&](TokenRange range, int64_t row) {
            ops_->copy(x.all.rows(range.begin, range.end), x.by_rank.rows(row, row + range.size()));
        });
    return x.all;
}

void KeyGather::begin_sums(Sums const& sums) {
    for (auto const& [memory, all] : {std::pair(keys_.by_rank, sums.all_dk_TGK), {values_.by_rank, sums.all_dv_TGK}})
        if (!zigzag())
            ops_->copy(memory, all);
        else
            each_range(shard_, [&](TokenRange range, int64_t row) {
                ops_->copy(memory.rows(row, row + range.size()), all.rows(range.begin, range.end));
            });
    Queue& beside = lane();
    cp_->reduce_scatter(beside, sums.dk_TGK, keys_.by_rank);
    sums_ = cp_->reduce_scatter(beside, sums.dv_TGK, values_.by_rank);
}

void KeyGather::end_sums() {
    Queue& queue = ops_->device().queue();
    InPhase const waiting(queue, Phase::communication, static_cast<int>(cp_->axis()));
    queue.wait(std::exchange(sums_, {}));
}

}  // namespace perigee
