#include "ops/host/host_ops.h"

#include <cstring>

#include "ops/host/attention.h"
#include "ops/host/blas.h"
#include "ops/host/functions.h"

namespace perigee {

namespace {

void expect(char const* what, ConstView view, Shape const& shape) {
    PERIGEE_CHECK(!view.empty() && view.shape == shape, "{} is {}{}, expected {}", what,
                  view.empty() ? "missing, " : "", view.shape.str(), shape.str());
}
void expect_optional(char const* what, ConstView view, Shape const& shape) {
    if (!view.empty()) expect(what, view, shape);
}
void expect_rank(char const* what, ConstView view, int rank) {
    PERIGEE_CHECK(view.shape.rank() == rank, "{} is {}, expected {} dimensions", what, view.shape.str(), rank);
}
void expect_bytes(ConstView to, ConstView from) {
    PERIGEE_CHECK(to.dtype == from.dtype && to.size() == from.size(), "copy of {} {} to {} {}", to_string(from.dtype),
                  from.shape.str(), to_string(to.dtype), to.shape.str());
}
/// Whether `rows` runs of `width` elements, `stride` apart, lie inside a view.
bool runs_fit(ConstView view, int64_t begin, int64_t stride, int64_t rows, int64_t width) {
    return begin >= 0 && stride >= width && (rows == 0 || begin + (rows - 1) * stride + width <= view.size());
}

}  // namespace

template <class Real>
HostOps<Real>::HostOps(Device& device, int threads) : device_(&device) {
    PERIGEE_CHECK(device.is_host(), "host operations on {}", device.name());
    host::set_threads(threads);
}

template <class Real>
void HostOps<Real>::upload(TensorView to, void const* from) {
    if (to.bytes() > 0) std::memcpy(to.data, from, static_cast<size_t>(to.bytes()));
}
template <class Real>
void HostOps<Real>::download(void* to, ConstView from) {
    if (from.bytes() > 0) std::memcpy(to, from.data, static_cast<size_t>(from.bytes()));
}
template <class Real>
void HostOps<Real>::copy(TensorView to, ConstView from) {
    expect_bytes(to, from);
    upload(to, from.data);
}
template <class Real>
void HostOps<Real>::copy_rows(CopyRows const& args) {
    auto const [to, to_begin, to_stride, from, from_begin, from_stride, rows, width] = args;
    PERIGEE_CHECK(to.dtype == from.dtype && rows >= 0 && width >= 0 && runs_fit(to, to_begin, to_stride, rows, width) &&
                      runs_fit(from, from_begin, from_stride, rows, width),
                  "copy of {} rows of {} from {} {} (first {}, every {}) to {} {} (first {}, every {})", rows, width,
                  to_string(from.dtype), from.shape.str(), from_begin, from_stride, to_string(to.dtype), to.shape.str(),
                  to_begin, to_stride);
    int64_t const element = size_of(to.dtype);
    if (width == 0) return;
    for (int64_t row = 0; row < rows; ++row)
        std::memcpy(to.data + (to_begin + row * to_stride) * element,
                    from.data + (from_begin + row * from_stride) * element, static_cast<size_t>(width * element));
}
template <class Real>
void HostOps<Real>::fill_zero(TensorView x) {
    if (x.bytes() > 0) std::memset(x.data, 0, static_cast<size_t>(x.bytes()));
}

template <class Real>
void HostOps<Real>::matmul(MatMul const& args) {
    expect_rank("a", args.a, 2);
    expect_rank("b", args.b, 2);
    int64_t const m = args.a[args.transpose_a ? 1 : 0], k = args.a[args.transpose_a ? 0 : 1];
    int64_t const n = args.b[args.transpose_b ? 0 : 1], k_b = args.b[args.transpose_b ? 1 : 0];
    PERIGEE_CHECK(k == k_b, "product of {}{} and {}{}", args.a.shape.str(), args.transpose_a ? "^T" : "",
                  args.b.shape.str(), args.transpose_b ? "^T" : "");
    expect("c", args.c, {m, n});
    host::gemm<Real>(args.transpose_a, args.transpose_b, m, n, k, Real(1), args.a.as<Real>(), args.a[1],
                     args.b.as<Real>(), args.b[1], args.accumulate ? Real(1) : Real(0), args.c.as<Real>(), n);
}

template <class Real>
void HostOps<Real>::add(TensorView accumulated, ConstView x) {
    expect_bytes(accumulated, x);
    host::add<Real>(accumulated, x);
}
template <class Real>
void HostOps<Real>::scale(TensorView x, double factor) {
    host::scale<Real>(x, factor);
}

template <class Real>
void HostOps<Real>::embedding_forward(TensorView x_TD, ConstView ids_T, ConstView table_VD, int64_t vocab_begin) {
    expect_rank("table", table_VD, 2);
    expect("x", x_TD, {ids_T.size(), table_VD[1]});
    host::embedding_forward<Real>(x_TD, ids_T, table_VD, vocab_begin);
}
template <class Real>
void HostOps<Real>::embedding_backward(TensorView dtable_accumulated_VD, ConstView ids_T, ConstView dx_TD,
                                       int64_t vocab_begin) {
    expect_rank("dtable", dtable_accumulated_VD, 2);
    expect("dx", dx_TD, {ids_T.size(), dtable_accumulated_VD[1]});
    host::embedding_backward<Real>(dtable_accumulated_VD, ids_T, dx_TD, vocab_begin);
}

template <class Real>
void HostOps<Real>::rmsnorm_forward(RmsNormForward const& args) {
    expect_rank("x", args.x_TD, 2);
    expect("y", args.y_TD, args.x_TD.shape);
    expect("rstd", args.rstd_T, {args.x_TD[0]});
    expect("w", args.w_D, {args.x_TD[1]});
    if (!args.residual_TD.empty()) {
        expect("residual", args.residual_TD, args.x_TD.shape);
        expect("sum", args.sum_TD, args.x_TD.shape);
    }
    host::rmsnorm_forward<Real>(args);
}
template <class Real>
void HostOps<Real>::rmsnorm_backward(RmsNormBackward const& args) {
    expect_rank("x", args.x_TD, 2);
    expect("dx", args.dx_TD, args.x_TD.shape);
    expect("dy", args.dy_TD, args.x_TD.shape);
    expect("w", args.w_D, {args.x_TD[1]});
    expect("dw", args.dw_accumulated_D, {args.x_TD[1]});
    expect("rstd", args.rstd_T, {args.x_TD[0]});
    expect_optional("dresidual", args.dresidual_TD, args.x_TD.shape);
    host::rmsnorm_backward<Real>(args, scratch_);
}

template <class Real>
void HostOps<Real>::rope_table(TensorView cos_TR, TensorView sin_TR, ConstView positions_T,
                               std::span<double const> inverse_frequencies, double magnitude) {
    Shape const shape{positions_T.size(), static_cast<int64_t>(inverse_frequencies.size())};
    expect("cos", cos_TR, shape);
    expect("sin", sin_TR, shape);
    host::rope_table<Real>(cos_TR, sin_TR, positions_T, inverse_frequencies, magnitude);
}

template <class Real>
void HostOps<Real>::qkv_forward(QkvForward const& args) {
    expect_rank("q", args.q_THK, 3);
    expect_rank("k", args.k_TGK, 3);
    int64_t const tokens = args.q_THK[0], heads = args.q_THK[1], kv_heads = args.k_TGK[1], size = args.q_THK[2];
    int64_t const width = (heads + 2 * kv_heads) * size;
    expect("k", args.k_TGK, {tokens, kv_heads, size});
    expect("v", args.v_TGK, {tokens, kv_heads, size});
    expect("qkv", args.qkv_TX, {tokens, width});
    expect("cos", args.cos_TR, {tokens, size / 2});
    expect("sin", args.sin_TR, {tokens, size / 2});
    expect_optional("bias", args.bias_X, {width});
    expect_optional("q_norm", args.q_norm_K, {size});
    expect_optional("k_norm", args.k_norm_K, {size});
    host::qkv_forward<Real>(args);
}
template <class Real>
void HostOps<Real>::qkv_backward(QkvBackward const& args) {
    expect_rank("dq", args.dq_THK, 3);
    expect_rank("dk", args.dk_TGK, 3);
    int64_t const tokens = args.dq_THK[0], heads = args.dq_THK[1], kv_heads = args.dk_TGK[1], size = args.dq_THK[2];
    int64_t const width = (heads + 2 * kv_heads) * size;
    expect("dk", args.dk_TGK, {tokens, kv_heads, size});
    expect("dv", args.dv_TGK, {tokens, kv_heads, size});
    expect("dqkv", args.dqkv_TX, {tokens, width});
    expect("cos", args.cos_TR, {tokens, size / 2});
    expect("sin", args.sin_TR, {tokens, size / 2});
    expect_optional("dbias", args.dbias_accumulated_X, {width});
    if (!args.q_norm_K.empty() || !args.k_norm_K.empty()) expect("qkv", args.qkv_TX, {tokens, width});
    if (!args.q_norm_K.empty()) expect("dq_norm", args.dq_norm_accumulated_K, {size});
    if (!args.k_norm_K.empty()) expect("dk_norm", args.dk_norm_accumulated_K, {size});
    host::qkv_backward<Real>(args, scratch_);
}

template <class Real>
void HostOps<Real>::attention_forward(AttentionForward const& args) {
    host::attention_forward<Real>(args);
}
template <class Real>
void HostOps<Real>::attention_backward(AttentionBackward const& args) {
    host::attention_backward<Real>(args);
}
template <class Real>
void HostOps<Real>::moba_select(MobaSelect const& args) {
    host::moba_select<Real>(args);
}

template <class Real>
void HostOps<Real>::swiglu_forward(TensorView y_TF, ConstView gate_up_T2F) {
    expect_rank("y", y_TF, 2);
    expect("gate_up", gate_up_T2F, {y_TF[0], 2 * y_TF[1]});
    host::swiglu_forward<Real>(y_TF, gate_up_T2F);
}
template <class Real>
void HostOps<Real>::swiglu_backward(TensorView dgate_up_T2F, ConstView dy_TF, ConstView gate_up_T2F) {
    expect_rank("dy", dy_TF, 2);
    expect("gate_up", gate_up_T2F, {dy_TF[0], 2 * dy_TF[1]});
    expect("dgate_up", dgate_up_T2F, gate_up_T2F.shape);
    host::swiglu_backward<Real>(dgate_up_T2F, dy_TF, gate_up_T2F);
}

template <class Real>
void HostOps<Real>::softmax_stats(SoftmaxStats const& args) {
    expect_rank("logits", args.logits_TV, 2);
    Shape const tokens{args.logits_TV[0]};
    expect("max", args.max_T, tokens);
    expect("sum", args.sum_T, tokens);
    expect("target", args.target_T, tokens);
    expect("targets", args.targets_T, tokens);
    host::softmax_stats<Real>(args);
}
template <class Real>
void HostOps<Real>::softmax_rescale(TensorView sum_T, ConstView max_T, ConstView global_max_T) {
    expect("max", max_T, sum_T.shape);
    expect("global max", global_max_T, sum_T.shape);
    host::softmax_rescale<Real>(sum_T, max_T, global_max_T);
}
template <class Real>
void HostOps<Real>::cross_entropy(CrossEntropy const& args) {
    expect_rank("logits", args.logits_TV, 2);
    Shape const tokens{args.logits_TV[0]};
    expect("nll", args.nll_T, tokens);
    expect_optional("dlogits", args.dlogits_TV, args.logits_TV.shape);
    expect("targets", args.targets_T, tokens);
    expect("weights", args.weights_T, tokens);
    expect("max", args.max_T, tokens);
    expect("sum", args.sum_T, tokens);
    expect("target", args.target_T, tokens);
    host::cross_entropy<Real>(args);
}

template <class Real>
double HostOps<Real>::squared_norm(ConstView x) {
    return host::squared_norm<Real>(x);
}
template <class Real>
void HostOps<Real>::adamw(AdamW const& args) {
    PERIGEE_CHECK(args.step >= 1, "AdamW counts steps from 1, not {}", args.step);
    expect("m", args.m, args.w.shape);
    expect("v", args.v, args.w.shape);
    expect("g", args.g, args.w.shape);
    host::adamw<Real>(args);
}

template class HostOps<float>;
template class HostOps<double>;

std::unique_ptr<Ops> make_host_ops(Device& host, int threads) {
    return std::make_unique<HostOps<float>>(host, threads);
}
std::unique_ptr<Ops> make_host_ops_f64(Device& host, int threads) {
    return std::make_unique<HostOps<double>>(host, threads);
}

}  // namespace perigee
