// The producers of the fused backward: a warp that looks rows up, two that gather them, one that brings keys. Each has
// 24 registers, so that the consumers can have 240; what can be read again from shared memory is not kept.
#pragma once

#include "kernels/moba/cuda/fused_shared.cuh"

namespace perigee::moba {

/// The first producer warp: takes items, and looks up the rows of every tile.
template <int D>
class Clerk {
    using T = Tiling<D>;

  public:
    __device__ Clerk(FusedArgs const& f, FusedShared<D>& shared)
        : f_(f), a_(f.a), shared_(shared), lane_(threadIdx.x % 32) {}

    __device__ void run() {
        for (uint32_t n = 0;; ++n) {
            int32_t const word = take();
            shared_.keys_free[n % 2].wait((n / 2 & 1) ^ 1);  // of the item before the last one
            Item& item = shared_.items[n % kItemRing];
            if (lane_ < kItemWords) reinterpret_cast<int32_t*>(&item)[lane_] = word;
            arrive_as_warp(shared_.item_known[n % 2]);
            if (item.end < 0) break;
            look_up_rows(item);
        }
        shared_.rows_free[ring_.stage].wait(ring_.free_parity());
        if (lane_ == 0) shared_.at[ring_.stage][0] = kNoMore;
        arrive_as_warp(shared_.rows_known[ring_.stage]);
    }

  private:
    /// A word of the next item's description; -1 where there is none.
    __device__ int32_t take() const {
        int32_t index = 0;
        if (lane_ == 0) index = atomicAdd(f_.counters + 1, 1);
        index = __shfl_sync(kAllLanes, index, 0);
        return index < f_.counters[0] && lane_ < kItemWords ? reinterpret_cast<int32_t const*>(f_.items + index)[lane_]
                                                            : -1;
    }

    __device__ void look_up_rows(Item const& item) {
        fetch_entries(item, item.begin, 0);
        int buffer = 0;
        for (int32_t first = item.begin; first < item.end; first += T::kRows, ring_.advance(), buffer ^= 1) {
            int const stage = ring_.stage;
            fetch_entries(item, first + T::kRows, buffer ^ 1);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
            shared_.rows_free[stage].wait(ring_.free_parity());
#pragma unroll 1
            for (int i = lane_; i < T::kRows; i += 32) look_up(item, first + i, shared_.entries[buffer][i], stage, i);
            arrive_as_warp(shared_.rows_known[stage]);
        }
        wait_for_copies();  // the buffers are free for the next item
    }
    /// Those of a tile that are in the list; a lane fetches what it will use.
    __device__ void fetch_entries(Item const& item, int32_t first, int buffer) const {
        uint32_t const* const list = a_.list + item.g * a_.list_stride + item.list;
#pragma unroll 1
        for (int i = lane_; i < T::kRows; i += 32) {
            copy_4(&shared_.entries[buffer][i], list + first + i, first + i < min(item.listed, item.end));
        }
        commit_copies();
    }
    /// Visitor `i`; `entry` is that of the list, where the row is in it.
    __device__ __forceinline__ void look_up(Item const& item, int32_t i, uint32_t entry, int stage, int place) const {
        int32_t const in_block = i - item.listed;
        bool const own = in_block >= 0;
        shared_.limit[stage][place] = min(item.key_end - 1, own ? item.own_token + f_.query_of(in_block) : INT_MAX);
        int32_t const row = own ? item.own_row + in_block : static_cast<int32_t>(entry >> 6);
        int32_t const slot = own ? a_.slots : static_cast<int32_t>(entry & 63);
        shared_.slot[stage][place] = static_cast<int32_t>(static_cast<uint32_t>(item.first_slot) +
                                                          static_cast<uint32_t>(row) * f_.row_slots + slot * f_.runs);
        int32_t const query = f_.query_of(row);
        shared_.at[stage][place] = i < item.end ? query * a_.heads + item.g * a_.group + row - query * a_.group : -1;
    }

    FusedArgs const& f_;
    AttentionArgs const& a_;
    FusedShared<D>& shared_;
    int lane_;
    RingPosition<T::kStages> ring_;
};

template <int D>
struct Pieces {
    static constexpr int kOfRow = D / 8;         // of 16 bytes
    static constexpr int kAtOnce = 32 / kOfRow;  // rows that one instruction of a warp copies
};

/// The second and third producer warps: rows of q with their lse, rows of do with their delta.
template <int D>
__device__ void copy_rows(FusedShared<D>& shared, bf16 const* rows, float const* numbers,
                          unsigned char (&tiles)[Tiling<D>::kStages][Tiling<D>::kTileBytes],
                          float (&to)[Tiling<D>::kStages][Tiling<D>::kRows]) {
    using T = Tiling<D>;
    for (RingPosition<T::kStages> ring;; ring.advance()) {
        int const stage = ring.stage;
        shared.rows_known[stage].wait(ring.parity());
        if (shared.at[stage][0] == kNoMore) break;
        int const lane = thread_anew() % 32, piece = lane % Pieces<D>::kOfRow;
#pragma unroll 1
        for (int i = lane; i < T::kRows; i += 32) {
            int32_t const at = shared.at[stage][i];
            copy_4(&to[stage][i], numbers + max(at, 0), at >= 0);
        }
        // Every group of kOfRow lanes copies consecutive rows.
        constexpr int kRowsOfGroup = T::kRows / Pieces<D>::kAtOnce;
        int const first = lane / Pieces<D>::kOfRow * kRowsOfGroup;
        bf16 const* const source = rows + piece * 8;
        uint32_t const tile = hopper::shared_address(tiles[stage]);
#pragma unroll 1
        for (int i = first; i < first + kRowsOfGroup; i += 4) {
            int4 const at = *reinterpret_cast<int4 const*>(&shared.at[stage][i]);
            uint32_t const to =
                tile + hopper::piece_offset<T::kRows>(i, piece);  // the next rows: other bits of swizzle
            auto const copy = [&](int row, int32_t from) {
                hopper::copy_piece((to ^ row * 16) + row * hopper::kPanelRowBytes, source + int64_t{from} * D,
                                   from >= 0);
            };
            copy(0, at.x), copy(1, at.y), copy(2, at.z), copy(3, at.w);
        }
        shared.rows_full[stage].arrive_when_copied();
    }
    hopper::finish_copies();
}

/// The fourth producer warp: keys and values.
template <int D>
__device__ void copy_keys(FusedArgs const& f, FusedShared<D>& shared) {
    AttentionArgs const& a = f.a;
    int const lane = threadIdx.x % 32, piece = lane % Pieces<D>::kOfRow;
    for (uint32_t n = 0;; ++n) {
        shared.item_known[n % 2].wait(n / 2 & 1);
        Item const& item = shared.items[n % kItemRing];
        if (n > 0) shared.keys_free[(n - 1) % 2].wait((n - 1) / 2 & 1);
        if (item.end < 0) break;
#pragma unroll 1
        for (int which = 0; which < 2; ++which) {
            uint32_t const tile = hopper::shared_address(which == 0 ? shared.k : shared.v);
            bf16 const* from = (which == 0 ? a.k : a.v) + piece * 8 +
                               (int64_t{item.key + lane / Pieces<D>::kOfRow} * a.kv_heads + item.g) * D;
            int32_t const keys = item.key_end - item.key;
#pragma unroll 4
            for (int i = lane / Pieces<D>::kOfRow; i < kItemKeys; i += Pieces<D>::kAtOnce) {
                hopper::copy_piece(tile + hopper::piece_offset<kItemKeys>(i, piece), from, i < keys);
                from += Pieces<D>::kAtOnce * a.kv_heads * D;
            }
        }
        commit_copies();
        wait_for_copies();
        hopper::fence_shared_for_async();
        arrive_as_warp(shared.keys_full);
    }
    arrive_as_warp(shared.keys_full);  // that there is nothing more
}

}  // namespace perigee::moba
