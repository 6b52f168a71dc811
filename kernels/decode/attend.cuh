// Attention of the newest tokens (flash-decode). Keys are cut into splits of 128. Each split leaves a normalised
// partial result and its log-sum-exp for the heads of a group, which are then merged.
#pragma once

#include "kernels/ampere/tile.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/decode/partials.h"
#include "kernels/decode/score_rows.cuh"

namespace perigee::decode {

using namespace ampere;

constexpr int kAttendThreads = 128;
constexpr int kWarpKeys = kSplitKeys / 4;
constexpr int kHeadRows = 16;                  // heads of a group at a time
constexpr int kWeightStride = kSplitKeys + 8;  // of a row of weights in shared memory

template <int D>
struct AttendShared {
    bf16 k[kSplitKeys * tile_stride<D>()];
    bf16 v[kSplitKeys * tile_stride<D>()];
    bf16 weights[kHeadRows * kWeightStride];
    float most[4][kHeadRows];
    float sums[4][kHeadRows];
    int32_t list_size;
    // Then: what the group's heads chose [listed], the same without repeats [listed], the list of blocks [listed + 1].
};

/// What the group's heads chose [listed], once each and in ascending order, then the local block. `chosen` is in shared
/// memory and has been written; three lists lie there one after the other.
__device__ __forceinline__ void list_blocks(int32_t* chosen, int32_t listed, int32_t current, int32_t& size) {
    int const thread = threadIdx.x;
    int32_t* const once = chosen + listed;  // INT32_MAX: no block, or one that an earlier slot has
    int32_t* const list = once + listed;
    if (thread == 0) size = 1;
    for (int i = thread; i < listed; i += kAttendThreads) {
        bool first = chosen[i] >= 0;
        for (int j = 0; j < i; ++j) first = first && chosen[j] != chosen[i];
        once[i] = first ? chosen[i] : INT32_MAX;
    }
    __syncthreads();
    for (int i = thread; i < listed; i += kAttendThreads) {
        if (once[i] == INT32_MAX) continue;
        int rank = 0;
        for (int j = 0; j < listed; ++j) rank += once[j] < once[i];
        list[rank] = once[i];
        atomicAdd(&size, 1);
    }
    __syncthreads();
    if (thread == 0) list[size - 1] = current;
    __syncthreads();
}

/// Keys [begin, begin + keys) of `block`.
struct Split {
    int32_t block, begin, keys;
    bool local;
    int64_t at;  ///< offset of its partial result in [S, H, most_splits], for the group's first head
};

/// All splits of one sequence and KV head.
struct Splits {
    int32_t const* list;  ///< block indices; null: all blocks
    int32_t count, per_block, block_size, current, tokens;
    int64_t at;

    __device__ Split operator[](int32_t i) const {
        int32_t const block = list == nullptr ? i / per_block : list[i / per_block];
        int32_t const begin = block * block_size + i % per_block * kSplitKeys;
        int32_t const end = min(min(begin + kSplitKeys, (block + 1) * block_size), tokens);
        return {block, begin, end - begin, block == current, at + i};
    }
};

/// Starts copying one split for KV head g. Keys are one cp.async group, values the next.
template <int D>
__device__ __forceinline__ void load_split(AttendShared<D>& shared, Cache const& c, Pages const& pages,
                                           Split const& split, int32_t g) {
    constexpr int kVectors = D / 8;
    int32_t const first_page = split.begin / c.page_size;
    bool const one_page = (split.begin + split.keys - 1) / c.page_size == first_page;
    int64_t const first = pages.row(split.begin, g) * D;
    int32_t const stride = c.kv_heads * D;
    auto const copy = [&](bf16* tile, bf16 const* from) {
#pragma unroll
        for (int i = 0; i < kSplitKeys * kVectors / kAttendThreads; ++i) {
            int const vector = i * kAttendThreads + static_cast<int>(threadIdx.x);
            int const key = vector / kVectors, column = vector % kVectors * 8, last = min(key, split.keys - 1);
            bf16 const* const row = from + (one_page ? first + last * stride : pages.row(split.begin + last, g) * D);
            copy_16(tile + key * tile_stride<D>() + column, row + column, key < split.keys);
        }
        end_copy_group();
    };
    copy(shared.k, c.k);
    copy(shared.v, c.v);
}

/// Whether the head, a row of its group, attends the block. `chosen`: [group, slots].
__device__ __forceinline__ bool attends(AttendArgs const& a, int32_t const* chosen, int head, Split const& split) {
    if (head >= a.group) return false;
    if (a.all || split.local) return true;
#pragma unroll 1
    for (int i = 0; i < a.slots; ++i)
        if (chosen[head * a.slots + i] == split.block) return true;
    return false;
}

/// Of the lane's rows lane / 4 and 8 below: what weights are relative to, in base 2, and their sums.
struct RowSums {
    float base[2], sum[2];
};

/// The weights [16, 128] of 16 heads, not yet divided by their sums, in bf16 to shared memory. Each warp makes those of
/// 32 keys. The values are there afterwards.
template <int D>
__device__ __forceinline__ RowSums make_weights(AttendShared<D>& shared, uint32_t const (&q)[D / 16][4],
                                                bool const (&attended)[2], int32_t keys, float scale_log2) {
    RowSums result;
    auto& [base, sum] = result;
    int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4;
    float s[kWarpKeys / 2] = {};
    bf16 const* const tile = shared.k + warp * kWarpKeys * tile_stride<D>();
#pragma unroll
    for (int step = 0; step < D / 16; ++step)
#pragma unroll
        for (int pair = 0; pair < kWarpKeys / 16; ++pair) {
            uint32_t b[4];
            load_matrices(b, shared_address(tile + (pair * 16 + lane / 16 * 8 + lane % 8) * tile_stride<D>() +
                                            step * 16 + lane / 8 % 2 * 8));
            mma(s + 8 * pair, q[step], b[0], b[1]);
            mma(s + 8 * pair + 4, q[step], b[2], b[3]);
        }
    float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < kWarpKeys / 2; ++i) {
        int const half = i % 4 / 2, key = warp * kWarpKeys + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (!attended[half] || key >= keys) s[i] = -INFINITY;
        most[half] = fmaxf(most[half], s[i]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        most[half] = quad_max(most[half]);
        if (lane % 4 == 0) shared.most[warp][row + half * 8] = most[half];
    }
    __syncthreads();
    float part[2] = {0, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float of_all = shared.most[0][row + half * 8];
        for (int w = 1; w < 4; ++w) of_all = fmaxf(of_all, shared.most[w][row + half * 8]);
        base[half] = finite_base(of_all) * scale_log2;
    }
#pragma unroll
    for (int i = 0; i < kWarpKeys / 2; ++i) {
        s[i] = exp2_approx(s[i] * scale_log2 - base[i % 4 / 2]);
        part[i % 4 / 2] += s[i];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        part[half] = quad_sum(part[half]);
        if (lane % 4 == 0) shared.sums[warp][row + half * 8] = part[half];
    }
#pragma unroll
    for (int i = 0; i < kWarpKeys / 2; i += 2) {
        bf16* const to = shared.weights + (row + i % 4 / 2 * 8) * kWeightStride + warp * kWarpKeys + i / 4 * 8;
        *reinterpret_cast<uint32_t*>(to + lane % 4 * 2) = pack(s[i], s[i + 1]);
    }
    wait_for_copy_groups<0>();
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        sum[half] = shared.sums[0][row + half * 8];
        for (int w = 1; w < 4; ++w) sum[half] += shared.sums[w][row + half * 8];
    }
    return result;
}

/// o [16, 16] of columns [16 pair, 16 pair + 16): weights times values.
template <int D>
__device__ __forceinline__ void weigh_values(AttendShared<D> const& shared, int pair, float (&o)[8]) {
    int const lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < kSplitKeys / 16; ++step) {
        uint32_t a[4], b[4];
        load_matrices(a, shared_address(shared.weights + lane % 16 * kWeightStride + step * 16 + lane / 16 * 8));
        load_transposed(b, shared.v + (step * 16 + lane % 16) * tile_stride<D>() + pair * 16 + lane / 16 * 8);
        mma(o, a, b[0], b[1]);
        mma(o + 4, a, b[2], b[3]);
    }
}

/// Heads [first, first + 16) of the group, whose queries are q, against the split in shared memory.
template <int D>
__device__ __forceinline__ void attend_heads(AttendArgs const& a, AttendShared<D>& shared, int32_t const* chosen,
                                             uint32_t const (&q)[D / 16][4], int first, Split const& split) {
    int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = first + lane / 4;
    bool const attended[2] = {attends(a, chosen, head, split), attends(a, chosen, head + 8, split)};
    auto const [base, sum] = make_weights<D>(shared, q, attended, split.keys, a.scale_log2);
    float const inverse[2] = {inverse_of_sum(sum[0]), inverse_of_sum(sum[1])};
    int64_t const at = split.at;
    for (int pair = warp; pair < D / 16; pair += kAttendThreads / 32) {
        float o[8] = {};
        weigh_values<D>(shared, pair, o);
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            int const half = i % 4 / 2, column = pair * 16 + i / 4 * 8 + lane % 4 * 2;
            if (head + half * 8 >= a.group) continue;
            float* const to = a.partial + (at + int64_t{head + half * 8} * a.most_splits) * D + column;
            *reinterpret_cast<float2*>(to) = make_float2(o[i] * inverse[half], o[i + 1] * inverse[half]);
        }
    }
    if (warp == 0 && lane % 4 == 0)
        for (int half = 0; half < 2; ++half)
            if (head + half * 8 < a.group)
                a.partial_lse[at + int64_t{head + half * 8} * a.most_splits] =
                    sum[half] == 0 ? -INFINITY : base[half] + log2f(sum[half]);
    __syncthreads();  // weights, maxima and sums have been read
}

/// Splits of sequence s and KV head g, strided over the thread blocks of a grid row. `chosen`: see AttendShared; its
/// list has `blocks` blocks. Returns the number of all splits.
template <int D>
__device__ __forceinline__ int32_t attend_splits(AttendArgs const& a, AttendShared<D>& shared, int32_t const* chosen,
                                                 int32_t blocks, int32_t length) {
    int32_t const s = blockIdx.z, g = blockIdx.y, B = a.cache.block_size, columns = static_cast<int32_t>(gridDim.x);
    int64_t const head = int64_t{s} * a.heads + int64_t{g} * a.group;
    int32_t const local_splits = length % B / kSplitKeys + 1;
    Splits const splits{.list = a.all ? nullptr : chosen + 2 * a.listed,
                        .count = length < 0 ? 0 : (blocks - 1) * a.splits_per_block + local_splits,
                        .per_block = a.splits_per_block,
                        .block_size = B,
                        .current = length < 0 ? 0 : length / B,
                        .tokens = length + 1,
                        .at = head * a.most_splits};
    Pages const pages(a.cache, s);
    bf16 const* const q = a.q + head * D;
    for (int32_t i = blockIdx.x; i < splits.count; i += columns) {
        Split const split = splits[i];
        // Full attention copies keys and values of complete blocks while the kernels before it still run.
        if (!a.all || split.local) wait_for_previous();
        load_split<D>(shared, a.cache, pages, split, g);
        wait_for_previous();
        for (int first = 0; first < a.group; first += kHeadRows) {
            uint32_t x[D / 16][4];
            load_heads<D>(x, q, first, a.group);
            wait_for_copy_groups<1>();
            __syncthreads();
            attend_heads<D>(a, shared, chosen, x, first, split);
        }
    }
    return splits.count;
}

/// Shared memory of the lists of list_blocks.
inline size_t list_bytes(AttendArgs const& args) { return sizeof(int32_t) * static_cast<size_t>(3 * args.listed + 1); }

/// Thread blocks per sequence and KV head: the fewest that keep `resident` thread blocks busy to the end, to within 3%
/// of the best possible. Results do not depend on it.
inline int64_t grid_columns(AttendArgs const& args, int64_t resident) {
    constexpr int64_t kTurns = 4;
    int64_t const rows = int64_t{args.cache.kv_heads} * args.cache.sequences;
    auto const filled = [&](int64_t columns) {
        return static_cast<double>(rows * columns) / static_cast<double>(round_up(rows * columns, resident));
    };
    int64_t best = 1, columns = 1;
    for (int64_t i = 2; i * rows <= kTurns * resident; ++i)
        if (filled(i) > filled(best)) best = i;
    while (filled(columns) < filled(best) - 0.03) ++columns;
    return std::min<int64_t>(columns, args.most_splits);
}

}  // namespace perigee::decode
