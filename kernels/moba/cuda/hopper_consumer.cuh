// The warpgroups of the Hopper forward that multiply and do the softmax: 64 rows of every tile each.
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

/// Where a warpgroup is: a tile of rows, and which of its tiles of keys.
struct Place {
    int32_t key_begin, key_tiles, seen_by_all, past, first_slot;
    bool keys_go_on;
    int32_t at[2];
    int32_t key_tile = 0;
    uint32_t keys = 0;  ///< tiles of keys before this tile's first, in the ring's count

    __device__ bool last() const { return key_tile + 1 == key_tiles; }
    __device__ uint32_t in_ring() const { return keys + static_cast<uint32_t>(key_tile); }
};

template <class T>
class ForwardConsumer {
  public:
    __device__ ForwardConsumer(ForwardArgs const& args, ForwardShared<T>& shared, int group)
        : a_(args.attention),
          shared_(shared),
          group_(group),
          row_(group * 64 + static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4)),
          scale_log2_(a_.scale * kLog2e),
          ring_(shared.visits) {}

    __device__ void run() {
        Place now = next_tile(0);
        if (now.key_tiles == 0) return;
        if constexpr (kOwn)
            for (int s = 0; s < T::kVisitStages; ++s) ring_.start(a_, own_rows(now), s);
        float s[kKeys / 2], o[D / 2], kept[2];
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
            ++then.key_tile;
            if (ends) then = next_tile(now.keys_go_on ? now.keys : now.keys + now.key_tiles);
            if (then.key_tiles == 0) break;
            if (ends) load_rows(q);
            start_scores(s, q, then);
            if constexpr (kLate)
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
            if constexpr (!kLate) finish_step(o, now, then, done, kept, visits);
            if (ends && !then.last()) load_rows(q);  // again: merging takes the registers
            before = now;
            now = then;
        }
        if constexpr (kLate)
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
    static constexpr int D = T::D, kKeys = T::kKeys, kKeyStages = T::kKeyStages;
    static constexpr bool kOwn = T::kOwn;
    /// A step is finished while the next scores are made; merging lacks the registers for that.
    static constexpr bool kLate = !kOwn;
    struct NoWeights {
        NoWeights() = default;
        __device__ NoWeights(AttentionArgs const&, OwnRows const&) {}
    };
    using VisitsOf = std::conditional_t<kOwn, VisitWeights, NoWeights>;

    __device__ Place next_tile(uint32_t keys) {
        shared_.q_full[q_.stage].wait(q_.parity());
        TileOfRows const& rows = shared_.rows[q_.stage];
        return {rows.key_begin,
                rows.key_tiles,
                rows.seen_by_all,
                rows.past,
                rows.first_slot + row_ * a_.slots,
                rows.keys_go_on,
                {rows.at[row_], rows.at[row_ + 8]},
                0,
                keys};
    }
    __device__ OwnRows own_rows(Place const& place) const {
        return {{place.at[0], place.at[1]}, {place.first_slot, place.first_slot + 8 * a_.slots}, place.past};
    }
    /// This warp no longer reads what `barrier` guards.
    __device__ static void release(Barrier& barrier) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier.arrive();
    }

    /// Own rows are left factors in registers: products with tiles of 64 keys are otherwise short of shared memory's
    /// bandwidth.
    __device__ void load_rows(uint32_t (&q)[D / 16][4]) {
        if constexpr (!kOwn) return;
        uint32_t const tile = hopper::shared_address(shared_.q[q_.stage]);
        int const lane = threadIdx.x % 32,
                  row = group_ * 64 + static_cast<int>(threadIdx.x % 128 / 32 * 16) + lane % 16;
#pragma unroll
        for (int step = 0; step < D / 16; ++step)
            hopper::load_matrices(q[step], tile + hopper::piece_offset<kRows>(row, step * 2 + lane / 16));
    }

    __device__ void start_scores(float (&s)[kKeys / 2], uint32_t const (&rows)[D / 16][4], Place const& at) {
        uint32_t const index = at.in_ring(), stage = index % kKeyStages;
        shared_.k_full[stage].wait(index / kKeyStages & 1);
        uint32_t const q = hopper::shared_address(shared_.q[q_.stage]) + group_ * 64 * hopper::kPanelRowBytes;
        uint32_t const k = hopper::shared_address(shared_.k[stage]);
        hopper::pin(s);
        hopper::products_begin();
#pragma unroll
        for (int step = 0; step < D / 16; ++step)
            if constexpr (kOwn)
                hopper::multiply<Inner::columns>(s, rows[step], hopper::columns_factor<kKeys>(k, 0, step), step > 0);
            else
                hopper::multiply<Inner::columns, Inner::columns>(s, hopper::columns_factor<kRows>(q, 0, step),
                                                                 hopper::columns_factor<kKeys>(k, 0, step), step > 0);
        hopper::products_commit();
    }
    __device__ void finish_scores(float (&s)[kKeys / 2], Place const& at) {
        hopper::pin(s);
        if (!at.keys_go_on) release(shared_.k_free[at.in_ring() % kKeyStages]);
        if (at.last()) {
            shared_.q_free[q_.stage].arrive();
            q_.advance();
        }
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
    __device__ void start_outputs(float (&o)[D / 2], uint32_t const (&weights)[kKeys / 16][4], Place const& at) {
        uint32_t const index = at.in_ring(), stage = index % kKeyStages;
        shared_.v_full[stage].wait(index / kKeyStages & 1);
        uint32_t const v = hopper::shared_address(shared_.v[stage]);
        hopper::pin(o);
        hopper::products_begin();
#pragma unroll
        for (int step = 0; step < kKeys / 16; ++step)
            hopper::multiply<Inner::rows>(o, weights[step], hopper::rows_factor<kKeys>(v, 0, step),
                                          step > 0 || at.key_tile > 0);
        hopper::products_commit();
    }
    __device__ void finish_outputs(float (&o)[D / 2], Place const& at) {
        hopper::pin(o);
        if (!at.keys_go_on) release(shared_.v_free[at.in_ring() % kKeyStages]);
    }

    /// What was summed up to a tile of keys is written where it is a row tile's last, else rescaled for the next.
    __device__ void finish_step(float (&o)[D / 2], Place const& at, Place const& next, Softmax<kKeys> const& done,
                                float const (&kept)[2], VisitsOf const& visits) {
        if (at.last()) {
            write(o, done, at, next, visits);
        } else {
#pragma unroll
            for (int i = 0; i < D / 2; ++i) o[i] *= kept[i % 4 / 2];
        }
    }

    /// The tile's results, normalised.
    __device__ void write(float const (&o)[D / 2], Softmax<kKeys> const& softmax, Place const& tile, Place const& next,
                          VisitsOf const& visits) {
        float sum[2], lse[2];  // of base 2
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            sum[half] = quad_sum(softmax.sum[half]);
            lse[half] = softmax.top[half] * scale_log2_ + log2_approx(sum[half]);
        }
        float* const lse_to = kOwn ? a_.lse_out : a_.partial_lse;
        if constexpr (kOwn) {
            float merged[D / 2];  // o itself may not change while products that wait for it are under way
            merge_visits<D>(a_, ring_, own_rows(tile), own_rows(next), visits, o, merged, sum, lse);
#pragma unroll
            for (int half = 0; half < 2; ++half)
                write_row<D>(a_.o_out + int64_t{tile.at[half]} * D, merged, half, inverse_of_sum(sum[half]),
                             tile.at[half] >= 0);
        } else {
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (tile.at[half] >= 0) write_partial<D>(a_.partial, tile.at[half], o, half, inverse_of_sum(sum[half]));
        }
#pragma unroll
        for (int half = 0; half < 2; ++half)
            if (tile.at[half] >= 0 && threadIdx.x % 4 == 0) lse_to[tile.at[half]] = lse[half] * (1 / kLog2e);
    }

    AttentionArgs const& a_;
    ForwardShared<T>& shared_;
    int group_, row_;
    float scale_log2_;
    RingPosition<T::kRowStages> q_;
    typename T::Ring ring_;
};

}  // namespace perigee::moba
