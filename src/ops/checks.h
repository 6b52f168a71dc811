// Checks of shapes and dtypes that every implementation of Ops makes before it touches memory. All throw
// Category::internal, naming the tensor, what it is and what was expected.
#pragma once

#include "ops/ops.h"

namespace perigee {

/// Same dtype and number of elements.
void check_same(ConstView to, ConstView from);
void check(CopyRows const& args);
/// Extents of c [m, n] = op(a) [m, k] op(b) [k, n].
struct Product {
    int64_t m, n, k;
};
Product check(MatMul const& args);
void check(RmsNormForward const& args);
void check(RmsNormBackward const& args);
void check_rope_table(ConstView cos_TR, ConstView sin_TR, ConstView positions_T, int64_t frequencies);
void check(QkvForward const& args);
void check(QkvBackward const& args);
void check_swiglu_forward(ConstView y_TF, ConstView gate_up_T2F);
void check_swiglu_backward(ConstView dgate_up_T2F, ConstView dy_TF, ConstView gate_up_T2F);
void check(SoftmaxStats const& args);
void check_softmax_rescale(ConstView sum_T, ConstView max_T, ConstView global_max_T);
void check(CrossEntropy const& args);
void check(StochasticRounding const& args);
void check(AdamW const& args);
void check_embedding_forward(ConstView x_TD, ConstView ids_T, ConstView table_VD);
void check_embedding_backward(ConstView dtable_VD, ConstView ids_T, ConstView dx_TD);
void check(AttentionForward const& args);
void check(AttentionBackward const& args);
void check(MobaSelect const& args);
void check_weighted_sum(ConstView sum, ConstView values_T, ConstView weights_T);

}  // namespace perigee
