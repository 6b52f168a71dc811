// What the fused backward left in parts: dq from the visits of a row, and dk and dv of keys whose rows were shared out.
// Both in a fixed order.
#include "kernels/moba/cuda/fused.cuh"
#include "kernels/moba/cuda/launch.cuh"

namespace perigee::moba {
namespace {

constexpr int kSumThreads = 256;

struct SumArgs {
    FusedArgs f;
    int32_t const* block_of;
};

/// A row of the wave by D / 8 lanes, eight numbers each.
template <int D>
__global__ void __launch_bounds__(kSumThreads, 5) query_sums_kernel(SumArgs const x) {
    constexpr int kLanes = D / 8;
    FusedArgs const& f = x.f;
    AttentionArgs const& a = f.a;
    int64_t const index = int64_t{blockIdx.x} * (kSumThreads / kLanes) + threadIdx.x / kLanes;
    int64_t const rows = int64_t{a.wave_end - a.wave_begin} * a.group;
    bool const there = index < rows;
    auto const row = static_cast<int32_t>(there ? index : 0), head = static_cast<int32_t>(blockIdx.y);
    int32_t const query = a.wave_begin + row / a.group, token = a.query_begin + query;
    int32_t const at = query * a.heads + (a.head + head) * a.group + row % a.group;
    int32_t const own = x.block_of[token];
    Block const block = a.blocks[own];
    int const lane = threadIdx.x % kLanes;
    auto const* const slots =
        reinterpret_cast<uint4 const*>(a.partial + (int64_t{head} * a.wave_rows + row) * f.row_slots * D) + lane;
    float sum[8] = {};
    auto const add = [&](int32_t slot, bool there) {
        uint4 const y = there ? __ldcs(slots + int64_t{slot} * kLanes) : uint4{};
        sum[0] += low(y.x), sum[1] += high(y.x), sum[2] += low(y.y), sum[3] += high(y.y);
        sum[4] += low(y.z), sum[5] += high(y.z), sum[6] += low(y.w), sum[7] += high(y.w);
    };
    if (f.runs == 1) {
#pragma unroll 4
        for (int s = 0; s < a.slots; ++s) add(s, slot_used(a, own - block.first, at, s));
    } else {
        for (int s = 0; s < a.slots; ++s) {
            if (!slot_used(a, own - block.first, at, s)) continue;
#pragma unroll 4
            for (int32_t i = 0; i < f.runs; ++i) add(s * f.runs + i, true);
        }
    }
#pragma unroll 4
    for (int32_t i = 0; i <= (token - block.begin) / kItemKeys; ++i) add(a.slots * f.runs + i, true);
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = pack(sum[2 * i], sum[2 * i + 1]);
    transpose_quad(word);
    if (there) reinterpret_cast<uint4*>(a.dq + int64_t{at} * D)[lane] = {word[0], word[1], word[2], word[3]};
}

/// One thread block per (run of keys, head); those with one piece are done.
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
    if (pieces == 0) return;
    int32_t first = f.piece_begin[at] + run * pieces;
    for (int32_t h = 0; h < head; ++h) first += f.piece_begin[int64_t{h + 1} * (a.capacity + 1) - 1];
    int const thread = threadIdx.x;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
        float sum[D / 2] = {};
        float4* const carried = dump_of<D>(f.carried, place_of_run(index, key), which, thread);
        if (f.carry_in) add_dumped<D>(sum, carried);
        for (int32_t i = 0; i < pieces; ++i) add_dumped<D>(sum, dump_of<D>(f.pieces, first + i, which, thread));
        if (f.carry_out)
            dump<D>(carried, sum);
        else
            write_key_gradient<D>(a, sum, which == 0 ? a.scale : 1.0f, which == 0 ? a.dk : a.dv, thread,
                                  key + thread / 128 * 64, min(block.end, key + kItemKeys), a.head + head);
    }
}

template <int D>
void sum_query_gradients(Stage const& stage, Wave const& wave, FusedArgs const& f) {
    int64_t const rows = int64_t{f.a.wave_end - f.a.wave_begin} * f.a.group;
    launch({"sum_query_gradients", ceil_div(rows, kSumThreads / (D / 8)), wave.heads, kSumThreads, 0,
            stage.problem.stream},
           query_sums_kernel<D>, SumArgs{f, stage.scratch.block_of});
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
        sum_query_gradients<D>(stage, wave, f);
        sum_key_gradients<D>(stage, wave, f);
    };
    if (stage.plan.shape.head_dim == 64)
        run.operator()<64>();
    else
        run.operator()<128>();
}

}  // namespace perigee::moba
