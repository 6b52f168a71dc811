// What the fused backward left in parts, in a fixed order: dq from the visits of a row, unless those have added it up,
// and dk and dv of keys whose rows were shared out.
#include <cuda_fp16.h>

#include "kernels/moba/cuda/fused.cuh"
#include "kernels/moba/cuda/launch.cuh"

namespace perigee::moba {
namespace {

constexpr int kSumThreads = 256;

struct SumArgs {
    FusedArgs f;
    int32_t const* block_of;
};

constexpr int kPlacesAtOnce = 8;

/// Which of its slots a row uses, as bits. kLanes neighbouring lanes ask for the same row; all lanes of a warp call.
template <int kLanes>
__device__ uint64_t used_slots(AttentionArgs const& a, int32_t own_relative, int32_t row) {
    int const lane = threadIdx.x % kLanes, shift = threadIdx.x % 32 / kLanes * kLanes;
    uint64_t used = 0;
    for (int first = 0; first < a.slots; first += kLanes) {
        bool const mine = first + lane < a.slots && slot_used(a, own_relative, row, first + lane);
        uint32_t const bits = __ballot_sync(kAllLanes, mine) >> shift & ((1u << kLanes) - 1);
        used |= uint64_t{bits} << first;
    }
    return used;
}

/// A row of the wave by D / 8 lanes, eight numbers each. The first places are read before it is known which are in use;
/// that of the own block's first chain is the row of dq itself.
template <int D>
__global__ void __launch_bounds__(kSumThreads, 4) query_sums_kernel(SumArgs const x) {
    constexpr int kLanes = D / 8;
    FusedArgs const& f = x.f;
    AttentionArgs const& a = f.a;
    int64_t const index = int64_t{blockIdx.x} * (kSumThreads / kLanes) + threadIdx.x / kLanes;
    int64_t const rows = int64_t{a.wave_end - a.wave_begin} * a.group;
    bool const there = index < rows;
    auto const row = static_cast<int32_t>(there ? index : 0), head = static_cast<int32_t>(blockIdx.y);
    int const lane = threadIdx.x % kLanes;
    int32_t const query = a.wave_begin + f.query_of(row), token = a.query_begin + query;
    int32_t const at = query * a.heads + (a.head + head) * a.group + row - f.query_of(row) * a.group;
    auto* const dq = reinterpret_cast<uint4*>(a.dq + int64_t{at} * D) + lane;
    uint4 const first_own = __ldcs(dq);
    auto const* const places =
        reinterpret_cast<uint4 const*>(a.partial + (int64_t{head} * a.wave_rows + row) * f.row_slots * D) + lane;
    uint4 part[kPlacesAtOnce];
#pragma unroll
    for (int i = 0; i < kPlacesAtOnce; ++i) part[i] = i < f.row_slots ? __ldcs(places + i * kLanes) : uint4{};

    int32_t const own = x.block_of[token];
    Block const block = a.blocks[own];
    uint64_t const slots = used_slots<kLanes>(a, own - block.first, at) | uint64_t{1} << a.slots;
    int32_t const own_chains = (token - block.begin) / (kItemKeys * f.chain);  // after the first
    int32_t slot = 0, chain = 0;                                               // of the next place
    float sum[8] = {low(first_own.x), high(first_own.x), low(first_own.y), high(first_own.y),
                    low(first_own.z), high(first_own.z), low(first_own.w), high(first_own.w)};
    for (int32_t first = 0; first < f.row_slots; first += kPlacesAtOnce) {
        bool used[kPlacesAtOnce];
#pragma unroll
        for (int i = 0; i < kPlacesAtOnce; ++i) {
            used[i] = slot <= a.slots && (slots >> slot & 1) != 0 && (slot < a.slots || chain < own_chains);
            if (++chain == f.chains) chain = 0, ++slot;
        }
        if (first > 0) {
#pragma unroll
            for (int i = 0; i < kPlacesAtOnce; ++i)
                part[i] = used[i] ? __ldcs(places + int64_t{first + i} * kLanes) : uint4{};
        }
#pragma unroll
        for (int i = 0; i < kPlacesAtOnce; ++i) {
            uint4 const y = used[i] ? part[i] : uint4{};
            sum[0] += low(y.x), sum[1] += high(y.x), sum[2] += low(y.y), sum[3] += high(y.y);
            sum[4] += low(y.z), sum[5] += high(y.z), sum[6] += low(y.w), sum[7] += high(y.w);
        }
    }
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = pack(sum[2 * i] * a.scale, sum[2 * i + 1] * a.scale);
    transpose_quad(word);
    if (there) *dq = {word[0], word[1], word[2], word[3]};
}

struct LayoutArgs {
    uint4* dq;
    int64_t count;
    float scale;
    int row_bits;  ///< a row is 2 to this eights
    RowNumbers const* rows;
};
constexpr int kLayoutThreads = 256, kLayoutsAtOnce = 4;

/// What visits have added up, from fp16 to bf16, scaled and its columns in their order. A thread has kLayoutsAtOnce
/// times eight numbers.
__global__ void __launch_bounds__(kLayoutThreads) query_layout_kernel(LayoutArgs const x) {
    int64_t const first = int64_t{blockIdx.x} * (kLayoutsAtOnce * kLayoutThreads) + threadIdx.x;
    uint4 part[kLayoutsAtOnce];
    float scale[kLayoutsAtOnce];
#pragma unroll
    for (int i = 0; i < kLayoutsAtOnce; ++i) {
        int64_t const at = first + i * kLayoutThreads;
        part[i] = at < x.count ? __ldcs(x.dq + at) : uint4{};
        scale[i] = at < x.count ? x.scale * inverse_of_power(x.rows[at >> x.row_bits].factor) : 0;
    }
#pragma unroll
    for (int i = 0; i < kLayoutsAtOnce; ++i) {
        uint32_t word[4] = {part[i].x, part[i].y, part[i].z, part[i].w};
#pragma unroll
        for (uint32_t& pair : word) {
            float2 const sums = __half22float2(reinterpret_cast<__half2 const&>(pair));
            pair = pack(sums.x * scale[i], sums.y * scale[i]);
        }
        transpose_quad(word);
        int64_t const at = first + i * kLayoutThreads;
        if (at < x.count) x.dq[at] = {word[0], word[1], word[2], word[3]};
    }
}

/// One thread block per (run of keys, head); those with one piece are done, but for sums that were carried.
template <int D>
__global__ void __launch_bounds__(kConsumers) key_sums_kernel(FusedArgs const f) {
    AttentionArgs const& a = f.a;
    auto const index = static_cast<int32_t>(blockIdx.x) / f.runs, run = static_cast<int32_t>(blockIdx.x) % f.runs;
    auto const head = static_cast<int32_t>(blockIdx.y);
    Block const block = a.blocks[index];
    int32_t const key = block.begin + run * kItemKeys;
    if (key >= block.end) return;
    int64_t const at = int64_t{head} * (a.capacity + 1) + index;
    int32_t const runs = (block.end - block.begin + kItemKeys - 1) / kItemKeys;
    int32_t const pieces = (f.piece_begin[at + 1] - f.piece_begin[at]) / runs;
    if (pieces == 0 && (!f.carry || f.carry_out)) return;
    int32_t first = f.piece_begin[at] + run * pieces;
    for (int32_t h = 0; h < head; ++h) first += f.piece_begin[int64_t{h + 1} * (a.capacity + 1) - 1];
    int const thread = threadIdx.x;
    bool const add = block.begin < f.earlier;
    bool const add_carried = f.carry && (add || pieces == 0);
    KeyRange const keys{key + thread / 128 * 64, min(block.end, key + kItemKeys), a.head + head,
                        a.add_to_dkv || (add && !f.carry)};
#pragma unroll
    for (int which = 0; which < 2; ++which) {
        float sum[D / 2] = {};
        float4* const carried = dump_of<D>(f.carried, place_of_run(f, index, key), which, thread);
        if (add_carried) add_dumped<D>(sum, carried);
        for (int32_t i = 0; i < pieces; ++i) add_dumped<D>(sum, dump_of<D>(f.pieces, first + i, which, thread));
        if (f.carry && f.carry_out)
            dump<D>(carried, sum);
        else
            write_key_gradient<D>(a, sum, which == 0 ? a.scale : 1.0f, which == 0 ? a.dk : a.dv, thread, keys);
    }
}

template <int D>
void sum_query_gradients(Stage const& stage, Wave const& wave, FusedArgs const& f) {
    int64_t const rows = int64_t{f.a.wave_end - f.a.wave_begin} * f.a.group;
    launch({"sum_query_gradients", ceil_div(rows, kSumThreads / (D / 8)), wave.heads, kSumThreads, 0,
            stage.problem.stream},
           query_sums_kernel<D>, SumArgs{f, stage.scratch.block_of});
}

/// Of all rows: visits add to dq only where there is one wave.
void lay_query_gradients_out(Stage const& stage, FusedArgs const& f) {
    MobaShape const& s = stage.plan.shape;
    int64_t const count = s.queries * s.heads * s.head_dim / 8;
    launch({"lay_query_gradients_out", ceil_div(count, kLayoutsAtOnce * kLayoutThreads), 1, kLayoutThreads, 0,
            stage.problem.stream},
           query_layout_kernel,
           LayoutArgs{reinterpret_cast<uint4*>(f.a.dq), count, f.a.scale, s.head_dim == 64 ? 3 : 4, f.a.rows});
}

template <int D>
void sum_key_gradients(Stage const& stage, Wave const& wave, FusedArgs const& f) {
    launch({"sum_key_gradients", stage.plan.blocks * f.runs, wave.heads, kConsumers, 0, stage.problem.stream},
           key_sums_kernel<D>, f);
}

}  // namespace

void sum_gradients(Stage const& stage, Wave const& wave, MobaGradients const& gradients) {
    FusedArgs const f = fused_args(stage, wave, gradients);
    auto const run = [&]<int D>() {
        if (f.adds_to_dq)
            lay_query_gradients_out(stage, f);
        else
            sum_query_gradients<D>(stage, wave, f);
        if (!(f.shares_sums && f.carry_out)) sum_key_gradients<D>(stage, wave, f);
    };
    if (stage.plan.shape.head_dim == 64)
        run.operator()<64>();
    else
        run.operator()<128>();
}

}  // namespace perigee::moba
