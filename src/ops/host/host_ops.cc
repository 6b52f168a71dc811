#include "ops/host/host_ops.h"

#include <cstring>

#include "ops/checks.h"
#include "ops/host/attention.h"
#include "ops/host/blas.h"
#include "ops/host/functions.h"

namespace perigee {

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
    check_same(to, from);
    upload(to, from.data);
}
template <class Real>
void HostOps<Real>::copy_rows(CopyRows const& args) {
    check(args);
    auto const [to, to_begin, to_stride, from, from_begin, from_stride, rows, width] = args;
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
void HostOps<Real>::fill_normal(FillNormal const& args) {
    host::fill_normal<Real>(args);
}

template <class Real>
void HostOps<Real>::matmul(MatMul const& args) {
    Product const p = check(args);
    host::gemm<Real>(args.transpose_a, args.transpose_b, p.m, p.n, p.k, Real(1), args.a.as<Real>(), args.a[1],
                     args.b.as<Real>(), args.b[1], args.accumulate ? Real(1) : Real(0), args.c.as<Real>(), p.n);
}

template <class Real>
void HostOps<Real>::add(TensorView accumulated, ConstView x) {
    check_same(accumulated, x);
    host::add<Real>(accumulated, x);
}
template <class Real>
void HostOps<Real>::round_stochastically(StochasticRounding const& args) {
    check(args);
    host::round_stochastically<Real>(args);
}
template <class Real>
void HostOps<Real>::scale(TensorView x, double factor) {
    host::scale<Real>(x, factor);
}

template <class Real>
void HostOps<Real>::embedding_forward(TensorView x_TD, ConstView ids_T, ConstView table_VD, int64_t vocab_begin) {
    check_embedding_forward(x_TD, ids_T, table_VD);
    host::embedding_forward<Real>(x_TD, ids_T, table_VD, vocab_begin);
}
template <class Real>
void HostOps<Real>::embedding_backward(TensorView dtable_accumulated_VD, ConstView ids_T, ConstView dx_TD,
                                       int64_t vocab_begin) {
    check_embedding_backward(dtable_accumulated_VD, ids_T, dx_TD);
    host::embedding_backward<Real>(dtable_accumulated_VD, ids_T, dx_TD, vocab_begin);
}

template <class Real>
void HostOps<Real>::rmsnorm_forward(RmsNormForward const& args) {
    check(args);
    host::rmsnorm_forward<Real>(args);
}
template <class Real>
void HostOps<Real>::rmsnorm_backward(RmsNormBackward const& args) {
    check(args);
    host::rmsnorm_backward<Real>(args, scratch_);
}

template <class Real>
void HostOps<Real>::rope_table(TensorView cos_TR, TensorView sin_TR, ConstView positions_T,
                               std::span<double const> inverse_frequencies, double magnitude) {
    check_rope_table(cos_TR, sin_TR, positions_T, std::ssize(inverse_frequencies));
    host::rope_table<Real>(cos_TR, sin_TR, positions_T, inverse_frequencies, magnitude);
}

template <class Real>
void HostOps<Real>::qkv_forward(QkvForward const& args) {
    check(args);
    host::qkv_forward<Real>(args);
}
template <class Real>
void HostOps<Real>::qkv_backward(QkvBackward const& args) {
    check(args);
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
    check_swiglu_forward(y_TF, gate_up_T2F);
    host::swiglu_forward<Real>(y_TF, gate_up_T2F);
}
template <class Real>
void HostOps<Real>::swiglu_backward(TensorView dgate_up_T2F, ConstView dy_TF, ConstView gate_up_T2F) {
    check_swiglu_backward(dgate_up_T2F, dy_TF, gate_up_T2F);
    host::swiglu_backward<Real>(dgate_up_T2F, dy_TF, gate_up_T2F);
}

template <class Real>
void HostOps<Real>::softmax_stats(SoftmaxStats const& args) {
    check(args);
    host::softmax_stats<Real>(args);
}
template <class Real>
void HostOps<Real>::softmax_rescale(TensorView sum_T, ConstView max_T, ConstView global_max_T) {
    check_softmax_rescale(sum_T, max_T, global_max_T);
    host::softmax_rescale<Real>(sum_T, max_T, global_max_T);
}
template <class Real>
void HostOps<Real>::cross_entropy(CrossEntropy const& args) {
    check(args);
    host::cross_entropy<Real>(args);
}

template <class Real>
void HostOps<Real>::squared_norm(TensorView sum_accumulated, ConstView x) {
    *sum_accumulated.as<double>() += host::squared_norm<Real>(x);
}
template <class Real>
void HostOps<Real>::weighted_sum(TensorView sum_accumulated, ConstView values_T, ConstView weights_T) {
    check_weighted_sum(sum_accumulated, values_T, weights_T);
    *sum_accumulated.as<double>() += host::weighted_sum<Real>(values_T, weights_T);
}
template <class Real>
void HostOps<Real>::adamw(AdamW const& args) {
    check(args);
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
