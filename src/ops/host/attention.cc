#include "ops/host/attention.h"

#include <algorithm>

#include "ops/checks.h"
#include "ops/host/attention_causal.h"
#include "ops/host/moba_attention.h"
#include "ops/host/moba_select.h"

namespace perigee::host {
namespace {

/// S, the blocks a query may choose besides its own.
int64_t slots(MobaOptions const& moba) { return moba.top_k - 1; }

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
    check(args);
    if (args.moba == nullptr) return causal_forward<Real>(args, documents(args.cu_seqlens));
    BlockGrid const grid(args.cu_seqlens, args.moba->block_size);
    causal_forward<Real>(args, grid.blocks);
    if (slots(*args.moba) > 0) routed_forward<Real>(args, grid, routes_of(args, grid));
}

template <class Real>
void attention_backward(AttentionBackward const& args) {
    check(args);
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
    check(args);
    if (slots(*args.moba) > 0) choose_blocks<Real>(args, BlockGrid(args.cu_seqlens, args.moba->block_size));
}

template void attention_forward<float>(AttentionForward const&);
template void attention_forward<double>(AttentionForward const&);
template void attention_backward<float>(AttentionBackward const&);
template void attention_backward<double>(AttentionBackward const&);
template void moba_select<float>(MobaSelect const&);
template void moba_select<double>(MobaSelect const&);

}  // namespace perigee::host
