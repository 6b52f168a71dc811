// The warpgroups of the Hopper forward that attend chosen blocks of few keys: one product makes all scores of a tile.
// Each team does one thing after the other, three of them keep the tensor cores busy between them.
#pragma once

#include "kernels/moba/cuda/hopper_consumer.cuh"

namespace perigee::moba {

template <class T>
class ShortTeam : TeamOfForward<T> {
  public:
    using TeamOfForward<T>::TeamOfForward;

    __device__ void run() {
        Place tile = next_tile({});
        if (tile.key_tiles == 0) return;
        float s[kKeys / 2], o[D / 2];
        start_scores(s, tile);
        for (;;) {
            uint32_t weights[kKeys / 16][4];
            Kept kept;
            Softmax<kKeys> softmax;
            hopper::products_wait<0>();
            finish_scores(s, tile);
            softmax.absorb(s, scale_log2_, kept);
            to_weights(weights, s);
            start_first_outputs(o, weights, tile);
            Total const total(softmax, scale_log2_);  // while the products run
            hopper::products_wait<0>();
            finish_outputs(o, tile);
            Place const next = next_tile(tile.next_keys());
            if (next.key_tiles == 0) {
                write(o, total, tile);
                return;
            }
            start_scores(s, next);
            write(o, total, tile);
            tile = next;
        }
    }

  private:
    using Team = TeamOfForward<T>;
    using Team::a_, Team::scale_log2_, Team::D, Team::kKeys;
    using Team::finish_outputs, Team::finish_scores, Team::next_tile, Team::start_first_outputs, Team::start_scores,
        Team::to_weights;
    using typename Team::Place;

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
    __device__ void write(float const (&o)[D / 2], Total const& total, Place const& tile) {
        PackedRow<D> packed[2];
        bf16* to[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) pack_partial<D>(packed[half], o, half, total.inverse[half]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            to[half] = a_.partial + piece_of_partial<D>(max(tile.at[half], 0), 0);
            asm volatile("" : "+l"(to[half]));  // before the stores, whose registers are in use for long
            if (tile.at[half] >= 0 && threadIdx.x % 4 == 0) a_.partial_lse[tile.at[half]] = total.lse[half];
        }
#pragma unroll
        for (int half = 0; half < 2; ++half)
            if (tile.at[half] >= 0) write_partial<D>(to[half], packed[half]);
    }
};

}  // namespace perigee::moba
