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

constexpr int32_t kMostMerged = 64;  // splits

struct SelectAttendArgs {
    AttendArgs attend;
    ScoreArgs gate;
};

/// Block means pass through the memory of keys and values, this many tiles of kScoreBlocks at a time.
template <int D>
constexpr int kMeanTiles =
    static_cast<int>(sizeof(AttendShared<D>::k) + sizeof(AttendShared<D>::v)) / hopper::tile_bytes<kScoreBlocks, D>();
/// Tiles that hold the means of blocks [from, current).
template <int D>
__device__ __forceinline__ int mean_tiles(int32_t from, int32_t current) {
    return min((current - from + kScoreBlocks - 1) / kScoreBlocks, kMeanTiles<D>);
}
/// Begins to copy means of blocks [from, current). They are of earlier steps, so the kernels before may still run.
template <int D>
__device__ __forceinline__ void begin_means(AttendArgs const& a, AttendShared<D>& shared, Pages const& pages,
                                            int32_t from, int32_t current) {
    constexpr int kVectors = D / 8, kTileBytes = hopper::tile_bytes<kScoreBlocks, D>();
    uint32_t const means = shared_address(shared.k);
    for (int i = threadIdx.x; i < mean_tiles<D>(from, current) * kScoreBlocks * kVectors; i += kAttendThreads) {
        int const block = i / kVectors, vector = i % kVectors, tile = block / kScoreBlocks;
        bool const there = from + block < current;
        bf16 const* const mean = a.cache.means + (there ? pages.mean_row(from + block, blockIdx.y) : 0) * D;
        hopper::copy_vector(
            means + tile * kTileBytes + hopper::swizzled_offset<kScoreBlocks>(block % kScoreBlocks, vector),
            mean + vector * 8, there);
    }
}

/// scores [group, most_blocks()] in shared memory: products in the order of the gate's gate_sm90.cu. The first means
/// are under way.
template <int D>
__device__ __forceinline__ void score_blocks(AttendArgs const& a, AttendShared<D>& shared, Pages const& pages,
                                             bf16 const* q, int32_t current, float* scores) {
    constexpr int kTileBytes = hopper::tile_bytes<kScoreBlocks, D>();
    int const lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16, row = warp_row + lane / 4;
    int32_t const most = a.cache.most_blocks();
    uint32_t const means = shared_address(shared.k);
    uint32_t x[D / 16][4];
    load_heads<D>(x, q, warp_row, a.group);
    for (int32_t from = 0; from < current; from += kMeanTiles<D> * kScoreBlocks) {
        if (from > 0) {
            __syncthreads();  // the means before have been read
            begin_means<D>(a, shared, pages, from, current);
        }
        finish_copies();
        hopper::fence_shared_for_async();
        __syncthreads();
        for (int tile = 0; tile < mean_tiles<D>(from, current); ++tile) {
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

/// Words of a set of candidate blocks, one bit each.
constexpr int kSetWords = kFewCandidates / 32;

/// The blocks of a set in ascending order, then `current`, and their number. By one warp.
[[maybe_unused]] __device__ __forceinline__ void list_set(uint32_t const* set, int32_t current, int32_t* list,
                                                          int32_t& size) {
    int const lane = threadIdx.x % 32;
    uint32_t word = lane < kSetWords ? set[lane] : 0;
    int const own = __popc(word);
    int end = own;
#pragma unroll
    for (int step = 1; step < kSetWords; step *= 2) {
        int const before = __shfl_up_sync(kAllLanes, end, step);
        if (lane >= step) end += before;
    }
#pragma unroll 1
    for (int at = end - own; word != 0; word &= word - 1) list[at++] = lane * 32 + __ffs(word) - 1;
    if (lane == kSetWords - 1) list[end] = current, size = end + 1;
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
#pragma unroll 1
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

/// As many thread blocks per SM as shared memory has room for.
template <int D>
__global__ void __launch_bounds__(kAttendThreads, D <= 64 ? 4 : 2) select_attend_kernel(SelectAttendArgs const args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    AttendArgs const& a = args.attend;
    int32_t const s = blockIdx.z, g = blockIdx.y, length = a.cache.lengths[s];
    int32_t const current = length < 0 ? 0 : length / a.cache.block_size, warp = threadIdx.x / 32;
    ScoreArgs const& gate = args.gate;
    auto& shared = hopper::dynamic_tiles<AttendShared<D>>();
    __shared__ uint32_t set[kSetWords];  // of blocks that any head of the group chose
    Pages const pages(a.cache, s);
    prefetch_table(a.cache, s);
    if (threadIdx.x < kSetWords) set[threadIdx.x] = 0;
    begin_means<D>(a, shared, pages, 0, current);
    bool const given = a.chosen != gate.chosen;  // the blocks to attend, not by this selection
    int64_t const head = int64_t{s} * a.heads + int64_t{g} * a.group;
    auto* const chosen = reinterpret_cast<int32_t*>(&shared + 1);
    if (given)
#pragma unroll 1
        for (int i = threadIdx.x; i < a.listed; i += kAttendThreads) chosen[i] = a.chosen[head * a.slots + i];
    wait_for_previous();
    let_next_begin();  // not before the wait: kernels after this one may then rely on what came before it
    auto* const scores = reinterpret_cast<float*>(chosen + 3 * a.listed + 1);
    score_blocks<D>(a, shared, pages, a.q + head * D, current, scores);
#pragma unroll 1
    for (int h = warp; h < a.group; h += kAttendThreads / 32)
        pick(gate, current, FewCandidates{scores + h * a.cache.most_blocks(), Ranks(gate, current)},
             [&](int32_t slot, int32_t block) {
                 if (blockIdx.x == 0) gate.chosen[(head + h) * a.slots + slot] = block;
                 int32_t& its = chosen[h * a.slots + slot];
                 if (given)
                     block = its;
                 else
                     its = block;
                 if (block >= 0) atomicOr(&set[block / 32], 1u << block % 32);
             });
    __syncthreads();
    if (warp == 0) list_set(set, current, chosen + 2 * a.listed, shared.list_size);
    __syncthreads();
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
           select.cache.most_blocks() <= kFewCandidates && most_splits(attend) <= kMostMerged;
}

void select_attend(Select const& select, Attend const& attend, MobaOptions const& gate) {
    SelectAttendArgs const args{attend_args(attend), score_args(select, gate)};
    with_sm90_head_dim(attend.cache.head_dim, [&]<int D>() {
        static_assert(sizeof(AttendShared<D>::k) >= kPoolBytes);
        size_t const scores =
            sizeof(float) * static_cast<size_t>(args.attend.group) * static_cast<size_t>(attend.cache.most_blocks());
        size_t const bytes = sizeof(AttendShared<D>) + list_bytes(args.attend) + scores;
        allow_shared(select_attend_kernel<D>, bytes);
        int64_t columns = grid_columns(args.attend, resident_blocks(select_attend_kernel<D>, kAttendThreads, bytes));
        // Little more than two thread blocks per SM leave some SMs no room for the next product: two of its thread
        // blocks then share another.
        int64_t const rows = int64_t{attend.cache.kv_heads} * attend.cache.sequences, sms = multiprocessors();
        if (rows * columns < 3 * sms) columns = std::min(columns, std::max<int64_t>(2 * sms / rows, 1));
        launch({.name = "decode_select_attend",
                .grid = {columns, attend.cache.kv_heads, attend.cache.sequences},
                .threads = kAttendThreads,
                .shared_bytes = bytes,
                .stream = attend.stream,
                .early = true},
               select_attend_kernel<D>, args);
    });
}

}  // namespace perigee::decode
