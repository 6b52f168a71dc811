// Fused operations computed as several simpler ones, for backends without a fused kernel.
#pragma once

#include <array>

#include "ops/operations.h"

namespace perigee {

/// Places the views one after the other in memory(bytes), at multiples of 256 bytes.
template <size_t N, class Memory>
std::array<TensorView, N> lay_out(std::array<TensorView, N> views, Memory&& memory) {
    auto const place = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
    int64_t bytes = 0;
    for (TensorView const& view : views) bytes += place(view.bytes());
    std::byte* at = memory(static_cast<size_t>(bytes));
    for (TensorView& view : views) view.data = at, at += place(view.bytes());
    return views;
}

/// `statistics`: dtype of rstd. `memory(bytes)` must stay valid until the last operation is done.
template <class Memory, class Compute>
void compute_in_parts(NormedProduct const& args, DType statistics, Memory&& memory, Compute&& compute) {
    DType const type = args.x_SD.dtype;
    int64_t const rows = args.x_SD[0], n = args.swiglu ? args.w_ND[0] : 0;
    auto const [normed_SD, rstd_S, product_SN] =
        lay_out(std::array{TensorView(nullptr, type, args.x_SD.shape), TensorView(nullptr, statistics, {rows}),
                           TensorView(nullptr, type, {rows, n})},
                memory);
    compute(
        RmsNormForward{.y_TD = normed_SD, .rstd_T = rstd_S, .x_TD = args.x_SD, .w_D = args.norm_D, .eps = args.eps});
    compute(MatMul{.c = args.swiglu ? product_SN : args.y_SN, .a = normed_SD, .b = args.w_ND, .transpose_b = true});
    if (args.swiglu) compute(SwigluForward{args.y_SN, product_SN});
}

template <class Memory, class Compute>
void compute_in_parts(DecodeQkv const& args, DType statistics, Memory&& memory, Compute&& compute) {
    DType const type = args.x_SD.dtype;
    int64_t const rows = args.x_SD[0], G = args.pages.k_NPGK.shape[2], K = args.pages.k_NPGK.shape[3];
    auto const [normed_SD, rstd_S, qkv_SX, k_SGK, v_SGK] =
        lay_out(std::array{TensorView(nullptr, type, args.x_SD.shape), TensorView(nullptr, statistics, {rows}),
                           TensorView(nullptr, type, {rows, args.w_XD[0]}), TensorView(nullptr, type, {rows, G, K}),
                           TensorView(nullptr, type, {rows, G, K})},
                memory);
    compute(
        RmsNormForward{.y_TD = normed_SD, .rstd_T = rstd_S, .x_TD = args.x_SD, .w_D = args.norm_D, .eps = args.eps});
    compute(MatMul{.c = qkv_SX, .a = normed_SD, .b = args.w_XD, .transpose_b = true});
    compute(QkvForward{.q_THK = args.q_SHK,
                       .k_TGK = k_SGK,
                       .v_TGK = v_SGK,
                       .qkv_TX = qkv_SX,
                       .cos_TR = args.cos_SR,
                       .sin_TR = args.sin_SR,
                       .bias_X = args.bias_X,
                       .q_norm_K = args.q_norm_K,
                       .k_norm_K = args.k_norm_K,
                       .eps = args.eps});
    compute(KvAppend{.pages = args.pages, .k_SGK = k_SGK, .v_SGK = v_SGK, .lengths_S = args.lengths_S});
}

}  // namespace perigee
