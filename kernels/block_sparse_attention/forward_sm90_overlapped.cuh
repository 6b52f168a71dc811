// Consumers of the sm90 forward for long selected blocks and for the local block, which merges the partials. Scores of
// the next KV tile overlap with the softmax of this one (FlashAttention-3, arXiv 2407.08608).
#pragma once

#include "kernels/block_sparse_attention/forward_sm90_consumer.cuh"

namespace perigee::block_sparse {

template <class T>
class OverlappedConsumer : ForwardConsumer<T> {
  public:
    __device__ OverlappedConsumer(ForwardArgs const& args, ForwardShared<T>& shared, int warpgroup)
        : ForwardConsumer<T>(args, shared, warpgroup), ring_(shared.partials) {}

    __device__ void run() {
        Cursor now = this->next_tile({});
        if (now.key_tiles == 0) return;
        if constexpr (kLocal)
            for (int s = 0; s < T::kPartialStages; ++s) ring_.start(a_, now, s);
        float s[kKeys / 2], o[D / 2];
        Rescale rescale;
        uint32_t weights[kKeys / 16][4], q[D / 16][4];
        Softmax<kKeys> softmax, done;
        PartialWeights partials;
        Cursor before{};
        this->load_rows(q);
        this->start_scores(s, q, now);
        hopper::products_wait<0>();
        this->finish_scores(s, now);
        softmax.absorb(s, scale_log2_, rescale);
        to_left(weights, s);
        for (;;) {
            bool const ends = now.last();
            Cursor then = now;
            then.step();
            if (ends) then = this->next_tile(now.next_keys());
            if (then.key_tiles == 0) break;
            if (ends) this->load_rows(q);
            this->start_scores(s, q, then);
            if (before.key_tiles > 0) finish_step(o, before, now, done, rescale, partials);
            this->start_outputs(o, weights, now);
            if (kLocal && ends) partials = PartialWeights(a_, now);
            hopper::products_wait<1>();
            this->finish_scores(s, then);
            if (ends) {
                done = softmax;
                softmax = {};
            }
            softmax.absorb(s, scale_log2_, rescale);
            hopper::settle(softmax.sum[0] + softmax.sum[1]);  // all of this while the products run
            hopper::products_wait<0>();
            this->finish_outputs(o, now);
            to_left(weights, s);
            before = now;
            now = then;
        }
        if (before.key_tiles > 0) finish_step(o, before, now, done, rescale, partials);
        this->start_outputs(o, weights, now);
        if (kLocal) partials = PartialWeights(a_, now);
        hopper::products_wait<0>();
        this->finish_outputs(o, now);
        Cursor nothing{};
        nothing.at[0] = nothing.at[1] = -1;
        write(o, softmax, now, nothing, partials);
        finish_copies();
    }

  private:
    using Base = ForwardConsumer<T>;
    using Base::a_, Base::scale_log2_, Base::D, Base::kKeys, Base::kLocal;
    using typename Base::Cursor;

    /// While the next scores are made: what was summed up to a tile of keys is written where it is a row tile's last,
    /// else rescaled for the next.
    __device__ void finish_step(float (&o)[D / 2], Cursor const& at, Cursor const& next, Softmax<kKeys> const& done,
                                Rescale const& rescale, PartialWeights const& partials) {
        if (at.last())
            write(o, done, at, next, partials);
        else
            rescale.apply(o);
    }

    /// The tile's results, normalised.
    __device__ void write(float (&o)[D / 2], Softmax<kKeys> const& softmax, Cursor const& tile, Cursor const& next,
                          PartialWeights const& partials) {
        float sum[2], lse[2];  // of base 2
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            sum[half] = quad_sum(softmax.sum[half]);
            lse[half] = softmax.top[half] * scale_log2_ + log2_approx(sum[half]);
        }
        float* const lse_to = kLocal ? a_.lse_out : a_.partial_lse;
        if constexpr (kLocal) {
            merge_partials<D>(a_, ring_, tile, next, partials, o, sum, lse);
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
                    write_partial<D>(a_.partial + vector_of_partial<D>(tile.at[half], 0), packed);
                }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half)
            if (tile.at[half] >= 0 && threadIdx.x % 4 == 0) lse_to[tile.at[half]] = lse[half] * (1 / kLog2e);
    }

    typename T::Ring ring_;
};

}  // namespace perigee::block_sparse
