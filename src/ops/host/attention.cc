#include "ops/host/attention.h"

#include <algorithm>

#include "ops/host/attention_causal.h"
#include "ops/host/moba_attention.h"
#include "ops/host/moba_select.h"

namespace perigee::host {
namespace {

void check_borders(std::span<int32_t const> cu_seqlens, int64_t tokens) {
    PERIGEE_CHECK(!cu_seqlens.empty() && cu_seqlens.front() == 0 && cu_seqlens.back() == tokens &&
                      std::is_sorted(cu_seqlens.begin(), cu_seqlens.end()),
                  "document borders must run from 0 to {} and never decrease", tokens);
}

template <class Args>
void check_inputs(Args const& args) {
    Shape const &q = args.q_THK.shape, &k = args.k_TGK.shape;
    PERIGEE_CHECK(q.rank() == 3 && k.rank() == 3 && k[2] == q[2] && k[1] > 0 && q[1] % k[1] == 0,
                  "queries {} do not fit keys {}", q.str(), k.str());
    PERIGEE_CHECK(args.query_begin >= 0 && args.query_begin + q[0] <= k[0], "{} queries from token {} of {}", q[0],
                  args.query_begin, k[0]);
    PERIGEE_CHECK(args.moba == nullptr || (args.moba->block_size > 0 && args.moba->top_k > 0),
                  "MoBA with block_size {} and top_k {}", args.moba->block_size, args.moba->top_k);
    check_borders(args.cu_seqlens, k[0]);
}

/// S, the blocks a query may choose besides its own.
int64_t slots(MobaOptions const& moba) { return moba.top_k - 1; }

template <class Args>
void check_attention(Args const& args) {
    check_inputs(args);
    Shape const& q = args.q_THK.shape;
    PERIGEE_CHECK(
        args.v_TGK.shape == args.k_TGK.shape && args.o_THK.shape == q && args.lse_TH.shape == Shape({q[0], q[1]}),
        "v {}, o {} or lse {} do not fit q {} and k {}", args.v_TGK.shape.str(), args.o_THK.shape.str(),
        args.lse_TH.shape.str(), q.str(), args.k_TGK.shape.str());
    if (args.moba != nullptr && slots(*args.moba) > 0)
        PERIGEE_CHECK(args.chosen_THS.shape == Shape({q[0], q[1], slots(*args.moba)}),
                      "choice {} for q {} and top_k {}", args.chosen_THS.shape.str(), q.str(), args.moba->top_k);
}

Routes routes_of(auto const& args, BlockGrid const& grid) {
    return {args.chosen_THS, queries_of(args), args.k_TGK[1], args.cu_seqlens, grid};
}

/// Sum of d_o * o over each row of K.
template <class Real>
std::vector<Real> row_products(ConstView do_THK, ConstView o_THK) {
    int64_t const rows = do_THK[0] * do_THK[1], K = do_THK[2];
    auto const* const a = do_THK.as<Real>();
    auto const* const b = o_THK.as<Real>();
    std::vector<Real> delta(rows);
#pragma omp parallel for
    for (int64_t row = 0; row < rows; ++row) {
        Real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = row * K; i < (row + 1) * K; ++i) sum += a[i] * b[i];
        delta[row] = sum;
    }
    return delta;
}

}  // namespace

template <class Real>
void attention_forward(AttentionForward const& args) {
    check_attention(args);
    if (args.moba == nullptr) return causal_forward<Real>(args, documents(args.cu_seqlens));
    BlockGrid const grid(args.cu_seqlens, args.moba->block_size);
    causal_forward<Real>(args, grid.blocks);
    if (slots(*args.moba) > 0) routed_forward<Real>(args, grid, routes_of(args, grid));
}

template <class Real>
void attention_backward(AttentionBackward const& args) {
    check_attention(args);
    PERIGEE_CHECK(args.do_THK.shape == args.q_THK.shape && args.dq_THK.shape == args.q_THK.shape &&
                      args.dk_TGK.shape == args.k_TGK.shape && args.dv_TGK.shape == args.k_TGK.shape,
                  "gradients do not have the shapes of q {} and k {}", args.q_THK.shape.str(), args.k_TGK.shape.str());
    if (!args.add_to_dkv)
        for (TensorView x : {args.dk_TGK, args.dv_TGK}) std::fill_n(x.as<Real>(), x.size(), Real{0});
    std::vector<Real> const delta = row_products<Real>(args.do_THK, args.o_THK);
    if (args.moba == nullptr) return causal_backward<Real>(args, documents(args.cu_seqlens), delta.data());
    BlockGrid const grid(args.cu_seqlens, args.moba->block_size);
    causal_backward<Real>(args, grid.blocks, delta.data());
    if (slots(*args.moba) > 0) routed_backward<Real>(args, grid, routes_of(args, grid), delta.data());
}

template <class Real>
void moba_select(MobaSelect const& args) {
    check_inputs(args);
    PERIGEE_CHECK(args.moba != nullptr, "a choice of blocks without MoBA options");
    PERIGEE_CHECK(args.chosen_THS.shape == Shape({args.q_THK[0], args.q_THK[1], slots(*args.moba)}),
                  "choice {} for q {} and top_k {}", args.chosen_THS.shape.str(), args.q_THK.shape.str(),
                  args.moba->top_k);
    if (slots(*args.moba) > 0) choose_blocks<Real>(args, BlockGrid(args.cu_seqlens, args.moba->block_size));
}

template void attention_forward<float>(AttentionForward const&);
template void attention_forward<double>(AttentionForward const&);
template void attention_backward<float>(AttentionBackward const&);
template void attention_backward<double>(AttentionBackward const&);
template void moba_select<float>(MobaSelect const&);
template void moba_select<double>(MobaSelect const&);

}  // namespace perigee::host
