#include "parallel/head_exchange.h"

#include "parallel/key_gather.h"

namespace perigee {

HeadExchange::Buffers HeadExchange::buffers(std::initializer_list<Move> moves) const {
    int64_t size = 0;
    for (Move const& move : moves) size += move.from.size();
    DType const dtype = moves.begin()->from.dtype;
    return {arena_->allocate("sent heads", dtype, {size}, Use::communication),
            arena_->allocate("received heads", dtype, {size}, Use::communication), size / cp_->size()};
}

void HeadExchange::exchange(Buffers const& x) const {
    Queue &queue = ops_->device().queue(), &lane = ops_->device().lane(kContextLane);
    lane.wait(queue.record());
    Pending const done = cp_->all_to_all(lane, x.receive, x.send);
    InPhase const waiting(queue, Phase::communication, static_cast<int>(cp_->axis()));
    queue.wait(done);
}

void HeadExchange::to_heads(std::initializer_list<Move> moves) const {
    Arena::Scope const scope(*arena_);
    Buffers const x = buffers(moves);
    int64_t begin = 0;
    for (Move const& move : moves) {
        int64_t const width = move.from.size() / move.from[0] / cp_->size();
        for (int64_t r = 0; r < cp_->size(); ++r)
            ops_->copy_rows({.to = x.send,
                             .to_begin = r * x.part + begin,
                             .to_stride = width,
                             .from = move.from,
                             .from_begin = r * width,
                             .from_stride = cp_->size() * width,
                             .rows = move.from[0],
                             .width = width});
        begin += move.from[0] * width;
    }
    exchange(x);
    begin = 0;
    for (Move const& move : moves) {
        int64_t const run = move.to.size() / cp_->size();
        ops_->copy_rows({.to = move.to,
                         .to_stride = run,
                         .from = x.receive,
                         .from_begin = begin,
                         .from_stride = x.part,
                         .rows = cp_->size(),
                         .width = run});
        begin += run;
    }
}

void HeadExchange::to_tokens(std::initializer_list<Move> moves) const {
    Arena::Scope const scope(*arena_);
    Buffers const x = buffers(moves);
    int64_t begin = 0;
    for (Move const& move : moves) {
        int64_t const run = move.from.size() / cp_->size();
        ops_->copy_rows({.to = x.send,
                         .to_begin = begin,
                         .to_stride = x.part,
                         .from = move.from,
                         .from_stride = run,
                         .rows = cp_->size(),
                         .width = run});
        begin += run;
    }
    exchange(x);
    begin = 0;
    for (Move const& move : moves) {
        int64_t const width = move.to.size() / move.to[0] / cp_->size();
        for (int64_t r = 0; r < cp_->size(); ++r)
            ops_->copy_rows({.to = move.to,
                             .to_begin = r * width,
                             .to_stride = cp_->size() * width,
                             .from = x.receive,
                             .from_begin = r * x.part + begin,
                             .from_stride = width,
                             .rows = move.to[0],
                             .width = width});
        begin += move.to[0] * width;
    }
}

}  // namespace perigee
