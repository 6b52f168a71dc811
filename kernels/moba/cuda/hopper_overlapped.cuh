// The warpgroups of the Hopper forward that attend chosen blocks of many keys, or a row's own block, with which they
// merge its visits. Two tiles of keys are under way at a time: scores of the next while this one's become weights
// (FlashAttention-3, arXiv 2407.08608).
#pragma once

#include "kernels/moba/cuda/hopper_consumer.cuh"

namespace perigee::moba {

template <class T>
class OverlappedTeam : TeamOfForward<T> {
  public:
    __device__ OverlappedTeam(ForwardArgs const& args, ForwardShared<T>& shared, int team)
        : TeamOfForward<T>(args, shared, team), ring_(shared.visits) {}

    __device__ void run() {
        Place now = next_tile({});
        if (now.key_tiles == 0) return;
        if constexpr (kOwn)
            for (int s = 0; s < T::kVisitStages; ++s) ring_.start(a_, own_rows(now), s);
        float s[kKeys / 2], o[D / 2];
        Kept kept;
        uint32_t weights[kKeys / 16][4], q[D / 16][4];
        Softmax<kKeys> softmax, done;
        VisitsOf visits;
        Place before{};
        load_rows(q);
        start_scores(s, q, now);
        hopper::products_wait<0>();
        finish_scores(s, now);
        softmax.absorb(s, scale_log2_, kept);
        to_weights(weights, s);
        for (;;) {
            bool const ends = now.last();
            Place then = now;
            then.step();
            if (ends) then = next_tile(now.next_keys());
            if (then.key_tiles == 0) break;
            if (ends) load_rows(q);
            start_scores(s, q, then);
            if (before.key_tiles > 0) finish_step(o, before, now, done, kept, visits);
            start_outputs(o, weights, now);
            if (ends) visits = VisitsOf(a_, own_rows(now));
            hopper::products_wait<1>();
            finish_scores(s, then);
            if (ends) {
                done = softmax;
                softmax = {};
            }
            softmax.absorb(s, scale_log2_, kept);
            hopper::settle(softmax.sum[0] + softmax.sum[1]);  // all of this while the products run
            hopper::products_wait<0>();
            finish_outputs(o, now);
            to_weights(weights, s);
            before = now;
            now = then;
        }
        if (before.key_tiles > 0) finish_step(o, before, now, done, kept, visits);
        start_outputs(o, weights, now);
        visits = VisitsOf(a_, own_rows(now));
        hopper::products_wait<0>();
        finish_outputs(o, now);
        Place nothing{};
        nothing.at[0] = nothing.at[1] = -1;
        write(o, softmax, now, nothing, visits);
        hopper::finish_copies();
    }

  private:
    using Team = TeamOfForward<T>;
    using Team::a_, Team::scale_log2_, Team::D, Team::kKeys, Team::kOwn;
    using Team::finish_outputs, Team::finish_scores, Team::next_tile, Team::start_outputs, Team::start_scores,
        Team::to_weights;
    using typename Team::Place;

    struct NoWeights {
        NoWeights() = default;
        __device__ NoWeights(AttentionArgs const&, OwnRows const&) {}
    };
    using VisitsOf = std::conditional_t<kOwn, VisitWeights, NoWeights>;

    __device__ OwnRows own_rows(Place const& place) const {
        return {{place.at[0], place.at[1]}, {place.first_slot, place.first_slot + 8 * a_.slots}, place.past};
    }
    __device__ void load_rows(uint32_t (&q)[D / 16][4]) {
        if constexpr (kOwn) Team::load_rows(q);
    }
    __device__ void start_scores(float (&s)[kKeys / 2], uint32_t const (&rows)[D / 16][4], Place const& at) {
        if constexpr (kOwn)
            Team::start_scores(s, rows, at);
        else
            Team::start_scores(s, at);
    }

    /// While the next scores are made: what was summed up to a tile of keys is written where it is a row tile's last,
    /// else rescaled for the next.
    __device__ void finish_step(float (&o)[D / 2], Place const& at, Place const& next, Softmax<kKeys> const& done,
                                Kept const& kept, VisitsOf const& visits) {
        if (at.last())
            write(o, done, at, next, visits);
        else
            Team::rescale(o, kept);
    }

    /// The tile's results, normalised.
    __device__ void write(float (&o)[D / 2], Softmax<kKeys> const& softmax, Place const& tile, Place const& next,
                          VisitsOf const& visits) {
        float sum[2], lse[2];  // of base 2
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            sum[half] = quad_sum(softmax.sum[half]);
            lse[half] = softmax.top[half] * scale_log2_ + log2_approx(sum[half]);
        }
        float* const lse_to = kOwn ? a_.lse_out : a_.partial_lse;
        if constexpr (kOwn) {
            merge_visits<D>(a_, ring_, own_rows(tile), own_rows(next), visits, o, sum, lse);
#pragma unroll
            for (int half = 0; half < 2; ++half)
                write_row<D>(a_.o_out + int64_t{tile.at[half]} * D, o, half, inverse_of_sum(sum[half]),
                             tile.at[half] >= 0);
        } else {
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (tile.at[half] >= 0) {
                    PackedRow<D> packed;
                    pack_partial<D>(packed, o, half, inverse_of_sum(sum[half]));
                    write_partial<D>(a_.partial + piece_of_partial<D>(tile.at[half], 0), packed);
                }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half)
            if (tile.at[half] >= 0 && threadIdx.x % 4 == 0) lse_to[tile.at[half]] = lse[half] * (1 / kLog2e);
    }

    typename T::Ring ring_;
};

}  // namespace perigee::moba
