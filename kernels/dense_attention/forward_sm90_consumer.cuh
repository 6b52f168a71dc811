// Consumer warpgroups of the dense forward, 64 query rows each. Scores of the next KV tile, of this query tile or the
// next one, overlap with the softmax of this one (FlashAttention-3, arXiv 2407.08608).
#pragma once

#include "kernels/common/softmax.cuh"
#include "kernels/dense_attention/forward_sm90_producer.cuh"
#include "kernels/hopper/product.cuh"
#include "kernels/hopper/results.cuh"

namespace perigee::dense {

using namespace kernels;
using hopper::Inner;

/// Position of a warpgroup: its rows of a query tile, and which of their KV tiles.
template <class T>
struct Cursor {
    int32_t at;         ///< the first row: its query * H + head
    int32_t row;        ///< the first row, counted from the document's beginning
    int32_t rows;       ///< how many there are, at most 64
    int32_t key_tiles;  ///< the last + 1 that they see; 0: there are no more query tiles
    int32_t left_over;  ///< KV tiles of the item that these rows do not see
    int32_t key_tile = 0;
    RingPosition<T::kKeyStages> keys = {};

    __device__ bool last() const { return key_tile + 1 == key_tiles; }
};

template <class T>
class Consumer {
    static constexpr int D = T::D, kKeys = T::kKeys;
    using Keys = RingPosition<T::kKeyStages>;

  public:
    __device__ Consumer(ForwardArgs const& args, ForwardShared<T>& shared, int warpgroup)
        : a_(args), shared_(shared), warpgroup_(warpgroup), scale_log2_(args.scale * kLog2e) {
        if constexpr (T::kCluster > 1) {
            k_free_ = hopper::uniform(hopper::cluster_address(shared_address(shared.k_free), T::kKeysRank));
            v_free_ = hopper::uniform(hopper::cluster_address(shared_address(shared.v_free), T::kValuesRank));
        }
    }

    __device__ void run() {
        Cursor<T> now = next_tile({}), done{};
        if (now.key_tiles == 0) return;
        float s[kKeys / 2], o[D / 2];
        Rescale rescale;
        uint32_t weights[kKeys / 16][4];
        Softmax<kKeys> softmax, finished;
        start_scores(s, now);
        hopper::products_wait<0>();
        finish_scores(s, now);
        softmax.absorb(s, scale_log2_, rescale);
        to_left(weights, s);
        for (;;) {
            bool const ends = now.last();
            Cursor<T> then = now;
            ++then.key_tile;
            then.keys.advance();
            if (ends) then = next_tile(pass(then.keys, now.left_over));
            if (then.key_tiles == 0) break;
            start_scores(s, then);
            finish_step(o, done, finished, rescale);
            start_outputs(o, weights, now);
            hopper::products_wait<1>();
            finish_scores(s, then);
            done.rows = 0;
            if (ends) {
                done = now;
                finished = softmax;
                softmax = {};
            }
            softmax.absorb(s, scale_log2_, rescale);
            // Of three warpgroups each does all of this while its products run. Of two it waits before exponentials:
            // rounding the weights, into registers of this product's factor, then goes on between them.
            if constexpr (T::kWarpgroups > 2) hopper::settle(softmax.sum[0] + softmax.sum[1]);
            hopper::products_wait<0>();
            finish_outputs(o, now);
            to_left(weights, s);
            now = then;
        }
        finish_step(o, done, finished, rescale);
        start_outputs(o, weights, now);
        hopper::products_wait<0>();
        finish_outputs(o, now);
        write(o, softmax, now);
    }

  private:
    __device__ int row() const {
        uint32_t const thread = hopper::thread_anew();
        return static_cast<int>(thread % 128 / 32 * 16 + thread % 32 / 4);
    }

    /// The next tile, whose first keys are at `keys`. A warpgroup without rows in it computes it anyway and writes
    /// nothing. It cannot skip the keys: it still holds earlier values, so the ring may not have room for all of them.
    __device__ Cursor<T> next_tile(Keys keys) {
        shared_.q_full[rows_.stage].wait(rows_.parity());
        TileOfRows const tile = shared_.tiles[rows_.stage];
        if (tile.key_tiles == 0) return {};
        int32_t const first = warpgroup_ * kConsumerRows;
        int32_t const rows = min(tile.end - tile.row - first, kConsumerRows);
        int32_t const sees = rows > 0 ? (tile.row + first + rows + kKeys - 1) / kKeys : tile.key_tiles;
        return {tile.at + first * a_.heads,
                tile.row + first,
                rows,
                sees,
                tile.key_tiles - sees,
                first_key_tile<T>(a_, tile.row),
                keys};
    }
    /// Skips `count` KV tiles that these rows do not see. The values of the tile before are still held, so the ring
    /// must have room for one tile more: two stages allow one skipped tile, four stages allow three.
    __device__ Keys pass(Keys at, int32_t count) {
        for (; count > 0; --count, at.advance()) {
            shared_.k_full[at.stage].wait(at.parity());
            release_keys(at);
            shared_.v_full[at.stage].wait(at.parity());
            release_values(at);
        }
        return at;
    }

    /// This warp no longer reads what `barrier` guards.
    __device__ void release(Barrier& barrier) const {
        __syncwarp();
        if (kArrivalsPerWarp > 1 || threadIdx.x % 32 == 0) barrier.arrive();
    }
    /// The same for a ring's barriers in the thread block that loads its tiles, at cluster address `remote`.
    __device__ void release(Barrier (&ring)[T::kKeyStages], uint32_t remote, Keys at) const {
        if constexpr (T::kCluster > 1) {
            __syncwarp();
            if (kArrivalsPerWarp > 1 || threadIdx.x % 32 == 0)
                hopper::arrive_at(remote + static_cast<uint32_t>(at.stage * sizeof(Barrier)));
        } else {
            release(ring[at.stage]);
        }
    }
    __device__ void release_keys(Keys at) { release(shared_.k_free, k_free_, at); }
    __device__ void release_values(Keys at) { release(shared_.v_free, v_free_, at); }
    __device__ void release_rows() {
        release(shared_.q_free[rows_.stage]);
        rows_.advance();
    }

    /// The first KV tile of the query tile, whose rows before the cursor's are other warpgroups'.
    __device__ int32_t first_tile(Cursor<T> const& at) const {
        return first_key_tile<T>(a_, at.row - warpgroup_ * kConsumerRows);
    }
    __device__ void start_scores(float (&s)[kKeys / 2], Cursor<T> const& at) {
        uint32_t const k = hopper::uniform(shared_address(shared_.k[at.keys.stage]));
        uint32_t const q = hopper::uniform(shared_address(shared_.q[rows_.stage]) +
                                           static_cast<uint32_t>(warpgroup_ * kConsumerRows * hopper::kPanelRowBytes));
        shared_.k_full[at.keys.stage].wait(at.keys.parity());
        hopper::start_products<Inner::columns, Inner::columns, D / 16>(
            s, [&](int step) { return hopper::columns_factor<T::kRows>(q, 0, step); },
            [&](int step) { return hopper::columns_factor<kKeys>(k, 0, step); });
    }
    __device__ void finish_scores(float (&s)[kKeys / 2], Cursor<T> const& at) {
        hopper::pin(s);
        release_keys(at.keys);
        if (at.last()) release_rows();
        int32_t const key = at.key_tile * kKeys;
        if (T::kWindowed && key <= at.row + kConsumerRows - 1 - a_.window) {
            int32_t const first = at.row + row() + 1 - a_.window;
            mask_scores_before(s, {first, first + 8}, key);
        }
        if (key + kKeys - 1 <= at.row) return;
        int32_t const first = at.row + row();
        mask_scores(s, {first, first + 8}, key);
    }
    __device__ void start_outputs(float (&o)[D / 2], uint32_t const (&weights)[kKeys / 16][4], Cursor<T> const& at) {
        uint32_t const v = hopper::uniform(shared_address(shared_.v[at.keys.stage]));
        shared_.v_full[at.keys.stage].wait(at.keys.parity());
        hopper::add_products<Inner::rows>(
            o, weights, [&](int step) { return hopper::rows_factor<kKeys>(v, 0, step); }, at.key_tile > first_tile(at));
    }
    __device__ void finish_outputs(float (&o)[D / 2], Cursor<T> const& at) {
        hopper::pin(o);
        release_values(at.keys);
    }

    /// While the next scores are made: what was summed up is written where it is a query tile's last, else rescaled.
    __device__ void finish_step(float (&o)[D / 2], Cursor<T> const& done, Softmax<kKeys> const& finished,
                                Rescale const& rescale) {
        if (done.rows > 0)
            write(o, finished, done);
        else
            rescale.apply(o);
    }
    __device__ void write(float (&o)[D / 2], Softmax<kKeys> const& softmax, Cursor<T> const& tile) {
        int const first = row();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float const sum = quad_sum(softmax.sum[half]);
            bool const there = first + 8 * half < tile.rows;
            int64_t const at = tile.at + int64_t{first + 8 * half} * a_.heads;
            hopper::write_row<D>(a_.o + at * D, o, half, inverse_of_sum(sum), there);
            if (there && threadIdx.x % 4 == 0)
                a_.lse[at] = (softmax.top[half] * scale_log2_ + log2_approx(sum)) * (1 / kLog2e);
        }
    }

    ForwardArgs const& a_;
    ForwardShared<T>& shared_;
    int warpgroup_;
    float scale_log2_;
    RingPosition<T::kRowStages> rows_ = {};
    uint32_t k_free_ = 0, v_free_ = 0;  ///< cluster addresses of the rings' barriers, where their tiles are loaded
};

}  // namespace perigee::dense
