// The host operations other than matrix products and attention, as functions on already checked arguments.
// Instantiated for float and double. Each gives the same bits whatever the number of threads.
// `scratch` is memory for partial sums, reused from call to call.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/ops.h"

namespace perigee::host {

template <class Real>
void rmsnorm_forward(RmsNormForward const& args);
template <class Real>
void rmsnorm_backward(RmsNormBackward const& args, std::vector<Real>& scratch);

template <class Real>
void rope_table(TensorView cos_TR, TensorView sin_TR, ConstView positions_T,
                std::span<double const> inverse_frequencies, double magnitude);
template <class Real>
void qkv_forward(QkvForward const& args);
template <class Real>
void qkv_backward(QkvBackward const& args, std::vector<Real>& scratch);

template <class Real>
void swiglu_forward(TensorView y_TF, ConstView gate_up_T2F);
template <class Real>
void swiglu_backward(TensorView dgate_up_T2F, ConstView dy_TF, ConstView gate_up_T2F);

template <class Real>
void embedding_forward(TensorView x_TD, ConstView ids_T, ConstView table_VD, int64_t vocab_begin);
template <class Real>
void embedding_backward(TensorView dtable_accumulated_VD, ConstView ids_T, ConstView dx_TD, int64_t vocab_begin);

template <class Real>
void softmax_stats(SoftmaxStats const& args);
template <class Real>
void softmax_rescale(TensorView sum_T, ConstView max_T, ConstView global_max_T);
template <class Real>
void cross_entropy(CrossEntropy const& args);

template <class Real>
void add(TensorView accumulated, ConstView x);
template <class Real>
void scale(TensorView x, double factor);
template <class Real>
double squared_norm(ConstView x);
template <class Real>
double weighted_sum(ConstView values_T, ConstView weights_T);
template <class Real>
void fill_normal(FillNormal const& args);
template <class Real>
void round_stochastically(StochasticRounding const& args);
template <class Real>
void adamw(AdamW const& args);

}  // namespace perigee::host
