#include "ops/checks.h"

#include <algorithm>

#include "ops/expect.h"

namespace perigee {

namespace {

/// Whether `rows` runs of `width` elements, `stride` apart, lie inside a view.
bool runs_fit(ConstView view, int64_t begin, int64_t stride, int64_t rows, int64_t width) {
    return begin >= 0 && stride >= width && (rows == 0 || begin + (rows - 1) * stride + width <= view.size());
}

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
    check_borders(args.cu_seqlens, k[0]);
}

template <class Args>
void check_attention(Args const& args) {
    check_inputs(args);
    Shape const& q = args.q_THK.shape;
    PERIGEE_CHECK(
        args.v_TGK.shape == args.k_TGK.shape && args.o_THK.shape == q && args.lse_TH.shape == Shape({q[0], q[1]}),
        "v {}, o {} or lse {} do not fit q {} and k {}", args.v_TGK.shape.str(), args.o_THK.shape.str(),
        args.lse_TH.shape.str(), q.str(), args.k_TGK.shape.str());
    check_scale(args.scale);
    if (auto const* const sparse = std::get_if<BlockSparse>(&args.attended))
        check_budget(sparse->budget, sparse->chosen_THS, q);
}

void check_same(ConstView to, ConstView from) {
    PERIGEE_CHECK(to.dtype == from.dtype && to.size() == from.size(), "{} {} to {} {}", to_string(from.dtype),
                  from.shape.str(), to_string(to.dtype), to.shape.str());
}

void check_quantized(char const* what, ConstQuantTensor const& x, Shape const& shape) {
    expect(what, x.values, shape);
    expect("its scales", x.scales, scales_shape(x.tiles, shape));
    PERIGEE_CHECK(x.values.dtype == DType::u8 && x.scales.dtype == DType::f32, "{} is {} with scales in {}", what,
                  to_string(x.values.dtype), to_string(x.scales.dtype));
}

}  // namespace

void check(Copy const& args) { check_same(args.to, args.from); }
void check(Add const& args) { check_same(args.accumulated, args.x); }

void check(CopyRows const& args) {
    auto const [to, to_begin, to_stride, from, from_begin, from_stride, rows, width] = args;
    PERIGEE_CHECK(to.dtype == from.dtype && rows >= 0 && width >= 0 && runs_fit(to, to_begin, to_stride, rows, width) &&
                      runs_fit(from, from_begin, from_stride, rows, width),
                  "copy of {} rows of {} from {} {} (first {}, every {}) to {} {} (first {}, every {})", rows, width,
                  to_string(from.dtype), from.shape.str(), from_begin, from_stride, to_string(to.dtype), to.shape.str(),
                  to_begin, to_stride);
}

Product check(MatMul const& args) {
    expect_rank("a", args.a, 2);
    expect_rank("b", args.b, 2);
    int64_t const m = args.a[args.transpose_a ? 1 : 0], k = args.a[args.transpose_a ? 0 : 1];
    int64_t const n = args.b[args.transpose_b ? 0 : 1], k_b = args.b[args.transpose_b ? 1 : 0];
    PERIGEE_CHECK(k == k_b, "product of {}{} and {}{}", args.a.shape.str(), args.transpose_a ? "^T" : "",
                  args.b.shape.str(), args.transpose_b ? "^T" : "");
    expect("c", args.c, {m, n});
    return {m, n, k};
}

void check(Quantize const& args) {
    expect_rank("x", args.x, 2);
    int64_t const rows = args.x[0], columns = args.x[1];
    bool const squares = (args.to.empty() ? args.transposed : args.to).tiles == Tiles::squares;
    PERIGEE_CHECK(!args.to.empty() || !args.transposed.empty(), "{} quantised into nothing", args.x.shape.str());
    PERIGEE_CHECK(columns % kQuantTile == 0 && (rows % kQuantTile == 0 || (!squares && args.transposed.empty())),
                  "{} is no multiple of tiles of {}", args.x.shape.str(), kQuantTile);
    if (!args.to.empty()) check_quantized("quantised", args.to, {rows, columns});
    if (!args.counts_accumulated_K.empty()) {
        expect("counts", args.counts_accumulated_K, {kQuantCounts});
        PERIGEE_CHECK(args.counts_accumulated_K.dtype == DType::f64 && !args.to.empty(), "counts in {} of {}",
                      to_string(args.counts_accumulated_K.dtype), args.to.values.shape.str());
    }
    if (args.transposed.empty()) return;
    check_quantized("transposed", args.transposed, {columns, rows});
    PERIGEE_CHECK((args.transposed.tiles == Tiles::squares) == squares, "tiles of two kinds");
}

Product check(QuantMatMul const& args) {
    expect_rank("a", args.a.values, 2);
    expect_rank("b", args.b.values, 2);
    int64_t const m = args.a.values[0], n = args.b.values[0], k = args.a.values[1];
    check_quantized("a", args.a, {m, k});
    check_quantized("b", args.b, {n, k});
    PERIGEE_CHECK(
        k % kQuantTile == 0 && args.a.tiles == Tiles::rows && (args.b.tiles == Tiles::rows || n % kQuantTile == 0),
        "a product of quantised {} and {}, whose tiles do not fit", args.a.values.shape.str(),
        args.b.values.shape.str());
    expect("c", args.c, {m, n});
    return {m, n, k};
}

void check(RmsNormForward const& args) {
    expect_rank("x", args.x_TD, 2);
    expect("y", args.y_TD, args.x_TD.shape);
    expect("rstd", args.rstd_T, {args.x_TD[0]});
    expect("w", args.w_D, {args.x_TD[1]});
    if (!args.residual_TD.empty()) {
        expect("residual", args.residual_TD, args.x_TD.shape);
        expect("sum", args.sum_TD, args.x_TD.shape);
    }
}

void check(RmsNormBackward const& args) {
    expect_rank("x", args.x_TD, 2);
    expect("dx", args.dx_TD, args.x_TD.shape);
    expect("dy", args.dy_TD, args.x_TD.shape);
    expect("w", args.w_D, {args.x_TD[1]});
    expect("dw", args.dw_accumulated_D, {args.x_TD[1]});
    expect("rstd", args.rstd_T, {args.x_TD[0]});
    expect_optional("dresidual", args.dresidual_TD, args.x_TD.shape);
}

void check(RopeTable const& args) {
    Shape const shape{args.positions_T.size(), std::ssize(args.inverse_frequencies)};
    expect("cos", args.cos_TR, shape);
    expect("sin", args.sin_TR, shape);
}

void check(QkvForward const& args) {
    expect_rank("q", args.q_THK, 3);
    expect_rank("k", args.k_TGK, 3);
    int64_t const tokens = args.q_THK[0], heads = args.q_THK[1], kv_heads = args.k_TGK[1], size = args.q_THK[2];
    int64_t const width = (heads + 2 * kv_heads) * size;
    expect_heads("q", args.q_THK, {tokens, heads, size});
    expect_heads("k", args.k_TGK, {tokens, kv_heads, size});
    expect_heads("v", args.v_TGK, {tokens, kv_heads, size});
    expect("qkv", args.qkv_TX, {tokens, width});
    expect("cos", args.cos_TR, {tokens, size / 2});
    expect("sin", args.sin_TR, {tokens, size / 2});
    expect_optional("bias", args.bias_X, {width});
    expect_optional("q_norm", args.q_norm_K, {size});
    expect_optional("k_norm", args.k_norm_K, {size});
}

void check(QkvBackward const& args) {
    expect_rank("dq", args.dq_THK, 3);
    expect_rank("dk", args.dk_TGK, 3);
    int64_t const tokens = args.dq_THK[0], heads = args.dq_THK[1], kv_heads = args.dk_TGK[1], size = args.dq_THK[2];
    int64_t const width = (heads + 2 * kv_heads) * size;
    expect_heads("dq", args.dq_THK, {tokens, heads, size});
    expect_heads("dk", args.dk_TGK, {tokens, kv_heads, size});
    expect_heads("dv", args.dv_TGK, {tokens, kv_heads, size});
    expect("dqkv", args.dqkv_TX, {tokens, width});
    expect("cos", args.cos_TR, {tokens, size / 2});
    expect("sin", args.sin_TR, {tokens, size / 2});
    expect_optional("dbias", args.dbias_accumulated_X, {width});
    if (!args.q_norm_K.empty() || !args.k_norm_K.empty()) expect("qkv", args.qkv_TX, {tokens, width});
    if (!args.q_norm_K.empty()) expect("dq_norm", args.dq_norm_accumulated_K, {size});
    if (!args.k_norm_K.empty()) expect("dk_norm", args.dk_norm_accumulated_K, {size});
}

void check(KeyConvForward const& args) {
    expect_rank("x", args.x_TC, 2);
    expect_rank("y", args.y_TX, 2);
    expect_rank("w", args.w_CW, 2);
    int64_t const tokens = args.x_TC[0], channels = args.x_TC[1], taps = args.w_CW[1];
    PERIGEE_CHECK(taps >= 1 && taps <= kWidestKeyConv, "a convolution of {} keys", taps);
    expect("w", args.w_CW, {channels, taps});
    expect("positions", args.positions_T, {tokens});
    PERIGEE_CHECK(args.y_TX[0] == tokens && args.first >= 0 && args.first + channels <= args.y_TX[1],
                  "columns [{}, {}) of {}", args.first, args.first + channels, args.y_TX.shape.str());
}

void check(KeyConvBackward const& args) {
    check(KeyConvForward{.y_TX = args.dx_TX,
                         .x_TC = args.x_TC,
                         .w_CW = args.w_CW,
                         .positions_T = args.positions_T,
                         .first = args.first});
    expect("dy", args.dy_TC, args.x_TC.shape);
    expect("dw", args.dw_accumulated_CW, args.w_CW.shape);
}

void check(SwigluForward const& args) {
    expect_rank("y", args.y_TF, 2);
    expect("gate_up", args.gate_up_T2F, {args.y_TF[0], 2 * args.y_TF[1]});
}

void check(SwigluBackward const& args) {
    expect_rank("dy", args.dy_TF, 2);
    int64_t const tokens = args.dy_TF[0], width = args.dy_TF[1];
    expect("gate_up", args.gate_up_T2F, {tokens, 2 * width});
    if (args.quantised_T2F.empty()) return expect("dgate_up", args.dgate_up_T2F, args.gate_up_T2F.shape);
    check_quantized("quantised", args.quantised_T2F, {tokens, 2 * width});
    check_quantized("transposed", args.transposed_2FT, {2 * width, tokens});
    PERIGEE_CHECK(args.dgate_up_T2F.empty() && tokens % kQuantTile == 0 && width % kQuantTile == 0,
                  "gradients of SwiGLU [{}, {}] in quantised tiles", tokens, 2 * width);
}

void check(SoftmaxStats const& args) {
    expect_rank("logits", args.logits_TV, 2);
    Shape const tokens{args.logits_TV[0]};
    expect("max", args.max_T, tokens);
    expect("sum", args.sum_T, tokens);
    expect("target", args.target_T, tokens);
    expect("targets", args.targets_T, tokens);
}

void check(SoftmaxRescale const& args) {
    expect("max", args.max_T, args.sum_T.shape);
    expect("global max", args.global_max_T, args.sum_T.shape);
}

void check(CrossEntropy const& args) {
    expect_rank("logits", args.logits_TV, 2);
    Shape const tokens{args.logits_TV[0]};
    expect("nll", args.nll_T, tokens);
    expect_optional("dlogits", args.dlogits_TV, args.logits_TV.shape);
    expect("targets", args.targets_T, tokens);
    expect("weights", args.weights_T, tokens);
    expect("max", args.max_T, tokens);
    expect("sum", args.sum_T, tokens);
    expect("target", args.target_T, tokens);
}

void check(StochasticRounding const& args) {
    PERIGEE_CHECK(args.to.dtype == DType::bf16 && args.to.size() == args.from.size(), "rounding {} {} to {} {}",
                  to_string(args.from.dtype), args.from.shape.str(), to_string(args.to.dtype), args.to.shape.str());
}

void check(Dropout const& args) {
    check_same(args.y, args.x);
    PERIGEE_CHECK(args.rate >= 0 && dropout_threshold(args.rate) < 65536, "dropout at a rate of {}", args.rate);
}

void check(AdamW const& args) {
    PERIGEE_CHECK(args.step >= 1, "AdamW counts steps from 1, not {}", args.step);
    expect("m", args.m, args.w.shape);
    expect("v", args.v, args.w.shape);
    expect("g", args.g, args.w.shape);
    PERIGEE_CHECK(args.m.dtype == args.v.dtype && (args.m.dtype == args.w.dtype || args.m.dtype == DType::bf16),
                  "AdamW with moments of {} and {}", to_string(args.m.dtype), to_string(args.v.dtype));
}

void check(EmbeddingForward const& args) {
    expect_rank("table", args.table_VD, 2);
    expect("x", args.x_TD, {args.ids_T.size(), args.table_VD[1]});
}

void check(EmbeddingBackward const& args) {
    expect_rank("dtable", args.dtable_accumulated_VD, 2);
    expect("dx", args.dx_TD, {args.ids_T.size(), args.dtable_accumulated_VD[1]});
}

void check(AttentionForward const& args) { check_attention(args); }

void check(AttentionBackward const& args) {
    check_attention(args);
    PERIGEE_CHECK(args.do_THK.shape == args.q_THK.shape && args.dq_THK.shape == args.q_THK.shape &&
                      args.dk_TGK.shape == args.k_TGK.shape && args.dv_TGK.shape == args.k_TGK.shape,
                  "gradients do not have the shapes of q {} and k {}", args.q_THK.shape.str(), args.k_TGK.shape.str());
}

void check(SelectBlocks const& args) {
    check_inputs(args);
    auto const budget = budget_of(args.selection);
    PERIGEE_CHECK(budget.has_value(), "a selection of blocks for full attention");
    check_budget(*budget, args.chosen_THS, args.q_THK.shape);
    check_forced(args.selection);
}

void check(HashBits const& args) {
    expect("hash", args.hash_accumulated, {1});
    PERIGEE_CHECK(args.hash_accumulated.dtype == DType::i64, "a hash of type {}",
                  to_string(args.hash_accumulated.dtype));
    PERIGEE_CHECK(args.x.dtype == DType::f32 || args.x.dtype == DType::f64 || args.x.dtype == DType::bf16,
                  "the hash of {}", to_string(args.x.dtype));
}

void check(WeightedSum const& args) {
    expect("sum", args.sum_accumulated, {1});
    expect("weights", args.weights_T, args.values_T.shape);
}

}  // namespace perigee
