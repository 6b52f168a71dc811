#include "ops/host/attention.h"

#include <algorithm>

#include "ops/checks.h"
#include "ops/host/attention_causal.h"
#include "ops/host/moba_attention.h"

namespace perigee::host {
namespace {

Routes routes_of(auto const& args, BlockSparse const& sparse, BlockGrid const& grid) {
    return {sparse.chosen_THS, queries_of(args), args.k_TGK[1], args.cu_seqlens, grid};
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
    auto const* const sparse = std::get_if<BlockSparse>(&args.attended);
    if (sparse == nullptr) return causal_forward<Real>(args, documents(args.cu_seqlens));
    BlockGrid const grid(args.cu_seqlens, sparse->budget.block_size);
    causal_forward<Real>(args, grid.blocks);
    if (sparse->budget.slots() > 0) routed_forward<Real>(args, grid, routes_of(args, *sparse, grid));
}

template <class Real>
void attention_backward(AttentionBackward const& args) {
    check(args);
    if (!args.add_to_dkv)
        for (TensorView x : {args.dk_TGK, args.dv_TGK}) std::fill_n(x.as<Real>(), x.size(), Real{0});
    std::vector<Real> const delta = row_products<Real>(args.do_THK, args.o_THK);
    auto const* const sparse = std::get_if<BlockSparse>(&args.attended);
    if (sparse == nullptr) return causal_backward<Real>(args, documents(args.cu_seqlens), delta.data());
    BlockGrid const grid(args.cu_seqlens, sparse->budget.block_size);
    causal_backward<Real>(args, grid.blocks, delta.data());
    if (sparse->budget.slots() > 0) routed_backward<Real>(args, grid, routes_of(args, *sparse, grid), delta.data());
}

template void attention_forward<float>(AttentionForward const&);
template void attention_forward<double>(AttentionForward const&);
template void attention_backward<float>(AttentionBackward const&);
template void attention_backward<double>(AttentionBackward const&);

}  // namespace perigee::host
