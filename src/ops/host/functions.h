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
void rope_table(RopeTable const& args);
template <class Real>
void qkv_forward(QkvForward const& args);
template <class Real>
void qkv_backward(QkvBackward const& args, std::vector<Real>& scratch);

template <class Real>
void key_conv_forward(KeyConvForward const& args);
template <class Real>
void key_conv_backward(KeyConvBackward const& args, std::vector<Real>& scratch);

template <class Real>
void swiglu_forward(SwigluForward const& args);
template <class Real>
void swiglu_backward(SwigluBackward const& args);

template <class Real>
void quantize(Quantize const& args);
/// Dequantised values of x, row by row.
template <class Real>
void dequantize(Real* to, ConstQuantTensor const& x);

template <class Real>
void embedding_forward(EmbeddingForward const& args);
template <class Real>
void embedding_backward(EmbeddingBackward const& args);

template <class Real>
void softmax_stats(SoftmaxStats const& args);
template <class Real>
void softmax_rescale(SoftmaxRescale const& args);
template <class Real>
void cross_entropy(CrossEntropy const& args);

template <class Real>
void add(Add const& args);
template <class Real>
void scale(Scale const& args);
template <class Real>
void dropout(Dropout const& args);
template <class Real>
double squared_norm(ConstView x);
uint64_t hash_bits(ConstView x);
template <class Real>
double weighted_sum(ConstView values_T, ConstView weights_T);
template <class Real>
void fill_normal(FillNormal const& args);
template <class Real>
void round_stochastically(StochasticRounding const& args);
template <class Real>
void adamw(AdamW const& args);

}  // namespace perigee::host
