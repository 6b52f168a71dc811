// Selection by the gate, attention and merge in one kernel, for few candidates and few splits: three launches cost more
// than each thread block's own copy of the scores. Bits are those of the separate kernels.
#include "kernels/common/arrivals.cuh"
#include "kernels/common/head_dim.h"
#include "kernels/decode/attend.cuh"
#include "kernels/decode/merge.cuh"
#include "kernels/decode/pick.cuh"
#include "kernels/decode/select_attend.h"
#include "kernels/hopper/product.cuh"

namespace perigee::decode {
namespace {

using hopper::Inner;
static_assert(kAttendThreads == kScoreThreads);

constexpr int32_t kMostCandidates = 512;  // blocks
constexpr int32_t kMostMerged = 64;       // splits

struct SelectAttendArgs {
    AttendArgs attend;
    ScoreArgs gate;
};

/// scores [group, most_blocks()] in shared memory: products in the order of the gate's gate_sm90.cu. Means pass through
/// the memory of keys and values.
template <int D>
__device__ __forceinline__ void score_blocks(AttendArgs const& a, AttendShared<D>& shared, Pages const& pages,
                                             bf16 const* q, int32_t current, float* scores) {
    constexpr int kVectors = D / 8, kTileBytes = hopper::tile_bytes<kScoreBlocks, D>(),
                  kTiles = 2 * kSplitKeys * tile_stride<D>() * static_cast<int>(sizeof(bf16)) / kTileBytes;
    int const lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16, row = warp_row + lane / 4;
    int32_t const g = blockIdx.y, most = a.cache.most_blocks();
    uint32_t const means = shared_address(shared.k);
    for (int32_t from = 0; from < current; from += kTiles * kScoreBlocks) {
        int const tiles = min((current - from + kScoreBlocks - 1) / kScoreBlocks, kTiles);
        __syncthreads();  // the means before have been read
        for (int i = threadIdx.x; i < tiles * kScoreBlocks * kVectors; i += kAttendThreads) {
            int const block = i / kVectors, vector = i % kVectors, tile = block / kScoreBlocks;
            bool const there = from + block < current;
            bf16 const* const mean = a.cache.means + (there ? pages.mean_row(from + block, g) : 0) * D;
            hopper::copy_vector(
                means + tile * kTileBytes + hopper::swizzled_offset<kScoreBlocks>(block % kScoreBlocks, vector),
                mean + vector * 8, there);
        }
        finish_copies();
        hopper::fence_shared_for_async();
        __syncthreads();
        for (int tile = 0; tile < tiles; ++tile) {
            uint32_t x[D / 16][4];
            load_heads<D>(x, q, warp_row, a.group);
            float s[32];
            hopper::add_products<Inner::columns>(
                s, x,
                [&](int step) { return hopper::columns_factor<kScoreBlocks>(means + tile * kTileBytes, 0, step); },
                false);
            hopper::products_wait<0>();
            hopper::pin(s);
#pragma unroll
            for (int i = 0; i < 32; ++i) {
                int const head = row + i % 4 / 2 * 8;
                int32_t const block = from + tile * kScoreBlocks + i / 4 * 8 + lane % 4 * 2 + i % 2;
                if (head < a.group && block < current) scores[head * most + block] = s[i];
            }
        }
    }
    __syncthreads();
}

/// merge.cu's result for the heads of a group, by the last thread block to arrive.
template <int D>
__device__ __forceinline__ void merge_group(AttendArgs const& a, AttendShared<D>& shared, int64_t head,
                                            int32_t splits) {
    constexpr int kPairs = D / 2, kAtOnce = 8;
    auto* const lse = reinterpret_cast<float*>(shared.weights);  // [group, splits]
    static_assert(sizeof(shared.weights) >= kHeadRows * kMostMerged * sizeof(float));
    for (int i = threadIdx.x; i < a.group * splits; i += kAttendThreads)
        lse[i] = __ldcg(a.partial_lse + (head + i / splits) * a.most_splits + i % splits);
    __syncthreads();
    for (int i = threadIdx.x; i < a.group * kPairs; i += kAttendThreads) {
        int const of = i / kPairs, column = i % kPairs * 2;
        float const* const its = lse + of * splits;
        auto const* const partial =
            reinterpret_cast<float2 const*>(a.partial + (head + of) * a.most_splits * D + column);
        float most = -INFINITY;
        for (int j = 0; j < splits; ++j) most = fmaxf(most, its[j]);
        most = finite_base(most);
        float total = 0;
        float2 result = make_float2(0, 0);
        for (int first = 0; first < min(splits, kMergeRuns<D>); first += kAtOnce) {
            float2 x[kAtOnce];
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) x[j] = __ldcg(partial + int64_t{min(first + j, splits - 1)} * kPairs);
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
                if (first + j >= min(splits, kMergeRuns<D>)) break;
                float sum = 0;
                float2 o = make_float2(0, 0);
                for (int split = first + j; split < splits; split += kMergeRuns<D>) {
                    if (split > first + j) x[j] = __ldcg(partial + int64_t{split} * kPairs);
                    float const weight = exp2_approx(its[split] - most);
                    sum += weight;
                    o.x = fmaf(weight, weight != 0 ? x[j].x : 0, o.x),
                    o.y = fmaf(weight, weight != 0 ? x[j].y : 0, o.y);
                }
                total += sum, result.x += o.x, result.y += o.y;
            }
        }
        float const inverse = inverse_of_sum(total);
        *reinterpret_cast<uint32_t*>(a.o + (head + of) * D + column) = pack(result.x * inverse, result.y * inverse);
    }
}

template <int D>
__global__ void __launch_bounds__(kAttendThreads) select_attend_kernel(SelectAttendArgs const args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    AttendArgs const& a = args.attend;
    int32_t const s = blockIdx.z, g = blockIdx.y, length = a.cache.lengths[s];
    prefetch_table(a.cache, s);
    wait_for_previous();
    let_next_begin();  // early prefetches by the next products would steal bandwidth from this kernel
    ScoreArgs const& gate = args.gate;
    auto& shared = hopper::dynamic_tiles<AttendShared<D>>();
    auto* const chosen = reinterpret_cast<int32_t*>(&shared + 1);
    auto* const scores = reinterpret_cast<float*>(chosen + 3 * a.listed + 1);
    int32_t const current = length < 0 ? 0 : length / a.cache.block_size, warp = threadIdx.x / 32;
    int64_t const head = int64_t{s} * a.heads + int64_t{g} * a.group;
    score_blocks<D>(a, shared, Pages(a.cache, s), a.q + head * D, current, scores);
    for (int h = warp; h < a.group; h += kAttendThreads / 32) {
        float const* const its = scores + h * a.cache.most_blocks();
        pick(
            gate, current, [&](int32_t block) { return its[block]; },
            [&](int32_t slot, int32_t block) {
                chosen[h * a.slots + slot] = block;
                if (blockIdx.x == 0) gate.chosen[(head + h) * a.slots + slot] = block;
            });
    }
    __syncthreads();
    if (a.chosen != gate.chosen) {
        for (int i = threadIdx.x; i < a.listed; i += kAttendThreads) chosen[i] = a.chosen[head * a.slots + i];
        __syncthreads();
    }
    list_blocks(chosen, a.listed, current, shared.list_size);
    int32_t const splits = attend_splits<D>(a, shared, chosen, shared.list_size, length);
    if (!last_to_arrive(gate.arrived + s * a.cache.kv_heads + g, gridDim.x)) return;
    merge_group<D>(a, shared, head, splits);
    if (a.pools) pool_completed<D, kAttendThreads>(a.cache, s, g, shared.k);
#endif
}

}  // namespace

bool takes_select_attend(Select const& select, Attend const& attend, MobaOptions const& gate) {
    int32_t const group = select.heads / select.cache.kv_heads;
    return select.arch == KernelArch::sm90 && gate.selection == MobaSelection::per_head && attend.slots > 0 &&
           !attend.all && gate.top_k - 1 == attend.slots && select.q == attend.q && group <= kHeadRows &&
           select.cache.most_blocks() <= kMostCandidates && most_splits(attend) <= kMostMerged;
}

void select_attend(Select const& select, Attend const& attend, MobaOptions const& gate) {
    SelectAttendArgs const args{attend_args(attend), score_args(select, gate)};
    with_sm90_head_dim(attend.cache.head_dim, [&]<int D>() {
        static_assert(sizeof(AttendShared<D>::k) >= kPoolBytes);
        size_t const scores =
            sizeof(float) * static_cast<size_t>(args.attend.group) * static_cast<size_t>(attend.cache.most_blocks());
        size_t const bytes = sizeof(AttendShared<D>) + list_bytes(args.attend) + scores;
        allow_shared(select_attend_kernel<D>, bytes);
        int64_t const columns =
            grid_columns(args.attend, resident_blocks(select_attend_kernel<D>, kAttendThreads, bytes));
        launch({"decode_select_attend", columns, attend.cache.kv_heads, kAttendThreads, bytes, attend.stream,
                attend.cache.sequences, true},
               select_attend_kernel<D>, args);
    });
}

}  // namespace perigee::decode
