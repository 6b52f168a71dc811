// Consumers of the sm90 forward for short selected blocks: one product makes all scores of a tile. Three warpgroups
// keep the tensor cores busy between them.
#pragma once

#include "kernels/block_sparse_attention/forward_sm90_consumer.cuh"

namespace perigee::block_sparse {

template <class T>
class ShortConsumer : ForwardConsumer<T> {
  public:
    using ForwardConsumer<T>::ForwardConsumer;

    __device__ void run() {
        Cursor tile = this->next_tile({});
        if (tile.key_tiles == 0) return;
        float s[kKeys / 2], o[D / 2];
        this->start_scores(s, tile);
        for (;;) {
            uint32_t weights[kKeys / 16][4];
            Rescale rescale;
            Softmax<kKeys> softmax;
            hopper::products_wait<0>();
            this->finish_scores(s, tile);
            softmax.absorb(s, scale_log2_, rescale);
            to_left(weights, s);
            this->start_first_outputs(o, weights, tile);
            Total const total(softmax, scale_log2_);  // while the products run
            hopper::products_wait<0>();
            this->finish_outputs(o, tile);
            Cursor const next = this->next_tile(tile.next_keys());
            if (next.key_tiles == 0) {
                write(o, total, tile);
                return;
            }
            this->start_scores(s, next);
            write(o, total, tile);
            tile = next;
        }
    }

  private:
    using Base = ForwardConsumer<T>;
    using Base::a_, Base::scale_log2_, Base::D, Base::kKeys;
    using typename Base::Cursor;

    /// Of the lane's rows: what their results are divided by, and their log-sum-exps.
    struct Total {
        float inverse[2], lse[2];

        __device__ Total(Softmax<T::kKeys> const& softmax, float scale_log2) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float const sum = quad_sum(softmax.sum[half]);
                inverse[half] = inverse_of_sum(sum);
                lse[half] = (softmax.top[half] * scale_log2 + log2_approx(sum)) * (1 / kLog2e);
            }
        }
    };
    /// Rounds before it asks which rows are there: registers are too few for o beside the next scores in branches.
    __device__ void write(float const (&o)[D / 2], Total const& total, Cursor const& tile) {
        PackedRow<D> packed[2];
        bf16* to[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) pack_partial<D>(packed[half], o, half, total.inverse[half]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            to[half] = a_.partial + vector_of_partial<D>(max(tile.at[half], 0), 0);
            asm volatile("" : "+l"(to[half]));  // before the stores, whose registers are in use for long
            if (tile.at[half] >= 0 && threadIdx.x % 4 == 0) a_.partial_lse[tile.at[half]] = total.lse[half];
        }
#pragma unroll
        for (int half = 0; half < 2; ++half)
            if (tile.at[half] >= 0) write_partial<D>(to[half], packed[half]);
    }
};

}  // namespace perigee::block_sparse
