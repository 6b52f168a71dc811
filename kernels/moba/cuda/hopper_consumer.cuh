// What all warpgroups of the Hopper forward that multiply and do the softmax have in common. A team is one of them: it
// works on 64 rows of every tile.
#pragma once

#include "kernels/hopper/product.cuh"
#include "kernels/moba/cuda/hopper_producer.cuh"

namespace perigee::moba {

using hopper::Inner;

/// Running maxima and sums of the lane's two rows; scaled scores are s * scale, exponentials of base 2.
template <int kKeys>
struct Softmax {
    float top[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0, 0};  ///< of this lane's columns

    /// Turns scores into weights relative to the new maximum; `kept` is what the old ones are worth.
    __device__ void absorb(float (&s)[kKeys / 2], float scale_log2, float (&kept)[2]) {
        float shift[2], added[2] = {0, 0};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float most = top[half];
#pragma unroll
            for (int n = 0; n < kKeys / 8; ++n) most = fmaxf(most, fmaxf(s[n * 4 + half * 2], s[n * 4 + half * 2 + 1]));
            most = quad_max(most);
            float const base = finite_base(most);
            kept[half] = exp2_approx((top[half] - base) * scale_log2);
            shift[half] = base * scale_log2;
            top[half] = most;
        }
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) {
            s[i] = exp2_approx(s[i] * scale_log2 - shift[i % 4 / 2]);
            added[i % 4 / 2] += s[i];
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) sum[half] = sum[half] * kept[half] + added[half];
    }
};

/// Where a team is: a tile of rows, and which of its tiles of keys.
struct Place {
    int32_t key_begin, key_tiles, seen_by_all, past, first_slot;
    bool keys_go_on;
    int32_t at[2];
    int32_t key_tile = 0;
    uint32_t keys = 0;  ///< tiles of keys before this tile's first, in the ring's count

    __device__ bool last() const { return key_tile + 1 == key_tiles; }
    __device__ uint32_t in_ring() const { return keys + static_cast<uint32_t>(key_tile); }
    /// The ring's count for the next tile of rows.
    __device__ uint32_t next_keys() const { return keys_go_on ? keys : keys + static_cast<uint32_t>(key_tiles); }
};

/// A team's dealings with the rings and its products: scores of a tile of keys, and results.
template <class T>
class TeamOfForward {
  public:
    __device__ TeamOfForward(ForwardArgs const& args, ForwardShared<T>& shared, int team)
        : a_(args.attention),
          shared_(shared),
          stage_(team * T::kRowStages),
          row_(static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4)),
          scale_log2_(a_.scale * kLog2e) {}

  protected:
    static constexpr int D = T::D, kKeys = T::kKeys, kKeyStages = T::kKeyStages;
    static constexpr bool kOwn = T::kOwn;

    /// The next tile that has rows for this team; `keys` is its place in the ring.
    __device__ Place next_tile(uint32_t keys) {
        for (;;) {
            shared_.q_full[stage_].wait(parity_);
            TeamRows const& rows = shared_.rows[stage_];
            Place const place{rows.key_begin,
                              rows.key_tiles,
                              rows.seen_by_all,
                              rows.past,
                              rows.first_slot + row_ * a_.slots,
                              !kOwn && rows.keys_go_on,
                              {rows.at[row_], rows.at[row_ + 8]},
                              0,
                              keys};
            if (!T::kShort || place.key_tiles == 0 || rows.there) return place;
            release_rows();
            if (!place.keys_go_on) pass_keys(place);
            keys = place.next_keys();
        }
    }
    /// A tile's keys that this team has no rows for.
    __device__ void pass_keys(Place at) {
        for (; at.key_tile < at.key_tiles; ++at.key_tile) {
            await_keys(at);
            release(shared_.k_free[at.in_ring() % kKeyStages]);
            await_values(at);
            release(shared_.v_free[at.in_ring() % kKeyStages]);
        }
    }
    /// This warp no longer reads what `barrier` guards.
    __device__ static void release(Barrier& barrier) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier.arrive();
    }
    __device__ void release_rows() {
        shared_.q_free[stage_].arrive();
        stage_ ^= 1;
        parity_ ^= ~stage_ & 1;
    }

    /// Own rows are left factors in registers: products with tiles of 64 keys are otherwise short of shared memory's
    /// bandwidth.
    __device__ void load_rows(uint32_t (&q)[D / 16][4]) {
        uint32_t const tile = hopper::shared_address(shared_.q[stage_]);
        int const lane = threadIdx.x % 32, row = static_cast<int>(threadIdx.x % 128 / 32 * 16) + lane % 16;
#pragma unroll
        for (int step = 0; step < D / 16; ++step)
            hopper::load_matrices(q[step], tile + hopper::piece_offset<kTeamRows>(row, step * 2 + lane / 16));
    }

    __device__ uint32_t await_keys(Place const& at) {
        uint32_t const index = at.in_ring(), stage = index % kKeyStages;
        shared_.k_full[stage].wait(index / kKeyStages & 1);
        return hopper::uniform(hopper::shared_address(shared_.k[stage]));
    }
    __device__ void start_scores(float (&s)[kKeys / 2], uint32_t const (&rows)[D / 16][4], Place const& at) {
        uint32_t const k = await_keys(at);
        hopper::pin(s);
        hopper::products_begin();
#pragma unroll
        for (int step = 0; step < D / 16; ++step)
            hopper::multiply<Inner::columns>(s, rows[step], hopper::columns_factor<kKeys>(k, 0, step), step > 0);
        hopper::products_commit();
    }
    __device__ void start_scores(float (&s)[kKeys / 2], Place const& at) {
        uint32_t const k = await_keys(at), q = hopper::uniform(hopper::shared_address(shared_.q[stage_]));
        hopper::products_begin();
        hopper::multiply_first<Inner::columns, Inner::columns>(s, hopper::columns_factor<kTeamRows>(q, 0, 0),
                                                               hopper::columns_factor<kKeys>(k, 0, 0));
#pragma unroll
        for (int step = 1; step < D / 16; ++step)
            hopper::multiply<Inner::columns, Inner::columns>(s, hopper::columns_factor<kTeamRows>(q, 0, step),
                                                             hopper::columns_factor<kKeys>(k, 0, step), true);
        hopper::products_commit();
    }
    __device__ void finish_scores(float (&s)[kKeys / 2], Place const& at) {
        hopper::pin(s);
        if (!at.keys_go_on) release(shared_.k_free[at.in_ring() % kKeyStages]);
        if (at.last()) release_rows();
        int32_t const key = at.key_begin + at.key_tile * kKeys;
        if (key + kKeys - 1 <= at.seen_by_all) return;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            // A row that is not there may see anything.
            int32_t limit = at.seen_by_all;
            if constexpr (kOwn) limit = at.at[half] < 0 ? INT_MAX : a_.query_begin + at.at[half] / a_.heads;
            int32_t const first = key + static_cast<int32_t>(threadIdx.x % 4) * 2;
#pragma unroll
            for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    if (first + n * 8 + i > limit) s[n * 4 + half * 2 + i] = -INFINITY;
        }
    }
    __device__ static void to_weights(uint32_t (&weights)[kKeys / 16][4], float const (&s)[kKeys / 2]) {
#pragma unroll
        for (int step = 0; step < kKeys / 16; ++step) hopper::to_left(weights[step], s, step);
    }
    __device__ uint32_t await_values(Place const& at) {
        uint32_t const index = at.in_ring(), stage = index % kKeyStages;
        shared_.v_full[stage].wait(index / kKeyStages & 1);
        return hopper::uniform(hopper::shared_address(shared_.v[stage]));
    }
    __device__ void start_outputs(float (&o)[D / 2], uint32_t const (&weights)[kKeys / 16][4], Place const& at) {
        uint32_t const v = await_values(at);
        hopper::pin(o);
        hopper::products_begin();
#pragma unroll
        for (int step = 0; step < kKeys / 16; ++step)
            hopper::multiply<Inner::rows>(o, weights[step], hopper::rows_factor<kKeys>(v, 0, step),
                                          step > 0 || at.key_tile > 0);
        hopper::products_commit();
    }
    /// Of a tile's first keys; what is in o counts as nothing.
    __device__ void start_first_outputs(float (&o)[D / 2], uint32_t const (&weights)[kKeys / 16][4], Place const& at) {
        uint32_t const v = await_values(at);
        hopper::products_begin();
        hopper::multiply_first<Inner::rows>(o, weights[0], hopper::rows_factor<kKeys>(v, 0, 0));
#pragma unroll
        for (int step = 1; step < kKeys / 16; ++step)
            hopper::multiply<Inner::rows>(o, weights[step], hopper::rows_factor<kKeys>(v, 0, step), true);
        hopper::products_commit();
    }
    __device__ void finish_outputs(float (&o)[D / 2], Place const& at) {
        hopper::pin(o);
        if (!at.keys_go_on) release(shared_.v_free[at.in_ring() % kKeyStages]);
    }
    /// What was summed up to a tile of keys, for the next.
    __device__ static void rescale(float (&o)[D / 2], float const (&kept)[2]) {
#pragma unroll
        for (int i = 0; i < D / 2; ++i) o[i] *= kept[i % 4 / 2];
    }

    AttentionArgs const& a_;
    ForwardShared<T>& shared_;
    int stage_;  ///< of rows, among all teams'
    int row_;
    uint32_t parity_ = 0;
    float scale_log2_;
};

}  // namespace perigee::moba
