#include "kernels/qkv/heads.cuh"

namespace perigee::kernels {

namespace {

template <int N, int V>
using Fetched = HeadsAhead<N, V, 1, 3, kThreadsWithoutSums>;

template <int N, int V, bool kBias, bool kNorm>
__global__ void __launch_bounds__(kThreadsWithoutSums) forward(QkvForward const a, int lanes, int heads_of_block) {
    Place const place(a.shape, lanes, heads_of_block);
    float const share = 1 / static_cast<float>(a.shape.size);
    bf16 const* const norm = place.is_v() ? nullptr : place.is_q() ? a.q_norm : a.k_norm;
    bool const normed = kNorm && norm != nullptr;
    auto row = walk_joined(a.qkv, place);
    Fetched<N, V> heads(place, block_memory(), {row.at, row.step}, {}, a.cos, a.sin);
    wait_for_previous();
    let_next_begin();
    heads.begin();
    Weights<N, V> bias = {}, weights = {};
    if (kBias) bias.load(a.bias + place.column(), place);
    if (normed) weights.load(norm, place);
    auto to = walk_split(a.q, a.k, a.v, place);
    for (int left = place.count(); left > 0; --left, row.advance(), to.advance()) {
        heads.advance();
        Half<N, V> low, high;
        float squares = 0;
        place.runs<N, V>([&](int v, int i) {
            heads.take(low.values[v], high.values[v], 0, v);
            if (kBias) {  // rounded, as the backward will find it
                float bias_low[N], bias_high[N];
                bias.widen(bias_low, bias_high, v);
#pragma unroll
                for (int j = 0; j < N; ++j) low.values[v][j] += bias_low[j], high.values[v][j] += bias_high[j];
                Run<bf16, N> const rounded[2] = {pack<bf16>(low.values[v]), pack<bf16>(high.values[v])};
                store_run<N>(row.at + i, rounded[0]);
                store_run<N>(row.at + place.half() + i, rounded[1]);
                unpack(low.values[v], rounded[0]);
                unpack(high.values[v], rounded[1]);
            }
            if (normed) {
#pragma unroll
                for (int j = 0; j < N; ++j)
                    squares += low.values[v][j] * low.values[v][j] + high.values[v][j] * high.values[v][j];
            }
        });
        float const rstd = normed ? rsqrtf(place.sum(squares) * share + a.eps) : 1;
        place.runs<N, V>([&](int v, int i) {
            if (normed) {
                float w_low[N], w_high[N];
                weights.widen(w_low, w_high, v);
#pragma unroll
                for (int j = 0; j < N; ++j) low.values[v][j] *= rstd * w_low[j], high.values[v][j] *= rstd * w_high[j];
            }
            heads.rotate(low.values[v], high.values[v], v, 1);
            store(to.at + i, low.values[v]);
            store(to.at + place.half() + i, high.values[v]);
        });
    }
}

}  // namespace

void qkv_forward(QkvForward const& args, cudaStream_t stream) {
    if (args.shape.tokens == 0) return;
    bool const aligned = in_runs_of_eight(
        0, {args.q, args.k, args.v, args.qkv, args.cos, args.sin, args.bias, args.q_norm, args.k_norm});
    bool const norm = args.q_norm != nullptr || args.k_norm != nullptr;
    with_options(args.shape, aligned, args.bias != nullptr, norm, [&]<int N, int V, bool kBias, bool kNorm>() {
        auto* const kernel = forward<N, V, kBias, kNorm>;
        plan<typename Fetched<N, V>::Ring>(args.shape, N * V, kThreadsWithoutSums, kBlocksWithoutSums, kernel)
            .launch("qkv_forward", kernel, stream, args);
    });
}

}  // namespace perigee::kernels
