// Consumer warpgroups of the sm90 forward: what they share, and those for short blocks. Each works on 64 rows of every
// tile.
#pragma once

#include "kernels/block_sparse_attention/forward_sm90_producer.cuh"
#include "kernels/common/softmax.cuh"
#include "kernels/hopper/product.cuh"
#include "kernels/hopper/results.cuh"

namespace perigee::block_sparse {

using hopper::Inner, hopper::write_row;

/// Position of a warpgroup: a query tile, and which of its KV tiles, in a ring of kKeyStages.
template <int kKeyStages>
struct TileCursor : LocalRows {
    int32_t key_begin, key_tiles, seen_by_all;
    bool keys_go_on;
    int32_t key_tile = 0;
    RingPosition<kKeyStages> first_keys = {}, keys = {};  ///< where the first, and this tile of keys is

    __device__ bool last() const { return key_tile + 1 == key_tiles; }
    __device__ void step() {
        ++key_tile;
        keys.advance();
    }
    /// From the last tile of keys: where the next tile of rows has its first.
    __device__ RingPosition<kKeyStages> next_keys() const {
        RingPosition<kKeyStages> next = keys;
        next.advance();
        return keys_go_on ? first_keys : next;
    }
};

/// The rings and products of a warpgroup: scores of a KV tile, and outputs.
template <class T>
class ForwardConsumer {
  public:
    __device__ ForwardConsumer(ForwardArgs const& args, ForwardShared<T>& shared, int warpgroup)
        : a_(args),
          shared_(shared),
          stage_(warpgroup * T::kRowStages),
          row_(static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4)),
          scale_log2_(a_.scale * kLog2e),
          lane_(threadIdx.x % 32) {
        asm volatile("" : "+r"(lane_));  // kept in a register: rereading it is slow
    }

  protected:
    static constexpr int D = T::D, kKeys = T::kKeys;
    static constexpr bool kLocal = T::kLocal;
    using Keys = RingPosition<T::kKeyStages>;
    using Cursor = TileCursor<T::kKeyStages>;

    /// The next tile that has rows for this warpgroup, whose first keys are at `keys`.
    __device__ Cursor next_tile(Keys keys) {
        for (;;) {
            shared_.q_full[stage_].wait(parity_);
            ConsumerRows const& rows = shared_.rows[stage_];
            Cursor cursor{{{rows.at[row_], rows.at[row_ + 8]}, rows.first_slot + row_ * a_.slots, rows.past},
                          rows.key_begin,
                          rows.key_tiles,
                          rows.seen_by_all,
                          !kLocal && rows.keys_go_on,
                          0,
                          keys,
                          keys};
            if (!T::kShort || cursor.key_tiles == 0 || rows.there) return cursor;
            release_rows();
            if (!cursor.keys_go_on) keys = pass_keys(cursor);
        }
    }
    /// Past a tile's keys that this warpgroup has no rows for.
    __device__ Keys pass_keys(Cursor at) {
        for (; at.key_tile < at.key_tiles; at.step()) {
            await_keys(at);
            release(shared_.k_free[at.keys.stage]);
            await_values(at);
            release(shared_.v_free[at.keys.stage]);
        }
        return at.keys;
    }
    /// This warp no longer reads what `barrier` guards.
    __device__ void release(Barrier& barrier) const {
        __syncwarp();
        if (lane_ == 0) barrier.arrive();
    }
    __device__ void release_rows() {
        shared_.q_free[stage_].arrive();
        stage_ ^= 1;
        parity_ ^= ~stage_ & 1;
    }

    /// Local rows are left factors in registers: products with tiles of 64 keys are otherwise short of shared memory's
    /// bandwidth.
    __device__ void load_rows(uint32_t (&q)[D / 16][4]) {
        if constexpr (kLocal)
            hopper::load_left<kConsumerRows>(q, shared_address(shared_.q[stage_]),
                                             static_cast<int>(threadIdx.x % 128 / 32 * 16));
    }

    /// Where they are is looked up while they may still be on their way.
    __device__ uint32_t await_keys(Cursor const& at) {
        uint32_t const keys = hopper::uniform(shared_address(shared_.k[at.keys.stage]));
        shared_.k_full[at.keys.stage].wait(at.keys.parity());
        return keys;
    }
    __device__ void start_scores(float (&s)[kKeys / 2], uint32_t const (&rows)[D / 16][4], Cursor const& at) {
        if constexpr (kLocal) {
            uint32_t const k = await_keys(at);
            hopper::add_products<Inner::columns>(
                s, rows, [&](int step) { return hopper::columns_factor<kKeys>(k, 0, step); }, false);
        } else {
            start_scores(s, at);
        }
    }
    __device__ void start_scores(float (&s)[kKeys / 2], Cursor const& at) {
        uint32_t const k = await_keys(at), q = hopper::uniform(shared_address(shared_.q[stage_]));
        hopper::start_products<Inner::columns, Inner::columns, D / 16>(
            s, [&](int step) { return hopper::columns_factor<kConsumerRows>(q, 0, step); },
            [&](int step) { return hopper::columns_factor<kKeys>(k, 0, step); });
    }
    __device__ void finish_scores(float (&s)[kKeys / 2], Cursor const& at) {
        hopper::pin(s);
        if (!at.keys_go_on) release(shared_.k_free[at.keys.stage]);
        int32_t const key = at.key_begin + at.key_tile * kKeys;
        bool const some_unseen = key + kKeys - 1 > at.seen_by_all;
        int32_t sees[2] = {at.seen_by_all, at.seen_by_all};
        if constexpr (kLocal)
            if (some_unseen) sees[0] = shared_.sees[stage_][row_], sees[1] = shared_.sees[stage_][row_ + 8];
        if (at.last()) release_rows();
        if (some_unseen) mask_scores(s, sees, key);
    }
    __device__ uint32_t await_values(Cursor const& at) {
        uint32_t const values = hopper::uniform(shared_address(shared_.v[at.keys.stage]));
        shared_.v_full[at.keys.stage].wait(at.keys.parity());
        return values;
    }
    __device__ void start_outputs(float (&o)[D / 2], uint32_t const (&weights)[kKeys / 16][4], Cursor const& at) {
        uint32_t const v = await_values(at);
        hopper::add_products<Inner::rows>(
            o, weights, [&](int step) { return hopper::rows_factor<kKeys>(v, 0, step); }, at.key_tile > 0);
    }
    /// Of a tile's first keys; what is in o counts as nothing.
    __device__ void start_first_outputs(float (&o)[D / 2], uint32_t const (&weights)[kKeys / 16][4], Cursor const& at) {
        uint32_t const v = await_values(at);
        hopper::start_products<Inner::rows>(o, weights,
                                            [&](int step) { return hopper::rows_factor<kKeys>(v, 0, step); });
    }
    __device__ void finish_outputs(float (&o)[D / 2], Cursor const& at) {
        hopper::pin(o);
        if (!at.keys_go_on) release(shared_.v_free[at.keys.stage]);
    }

    AttentionArgs const& a_;
    ForwardShared<T>& shared_;
    int stage_;  ///< of rows, among all warpgroups'
    int row_;
    uint32_t parity_ = 0;
    float scale_log2_;
    uint32_t lane_;
};

/// For short selected blocks: one product makes all scores of a tile. Three warpgroups keep the tensor cores busy
/// between them.
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
            softmax.absorb(s, scale_log2_, rescale, true);
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
