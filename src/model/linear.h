// Matrix products of a block, in the precision of the pass and split by tensor parallelism. If the rows of W are split,
// each rank reads all tokens. If its columns are split, partial sums are added over the ranks.
#pragma once

#include "model/block.h"

namespace perigee {

inline TensorView matrix(TensorView heads_THK) {
    return heads_THK.reshape({heads_THK[0], heads_THK[1] * heads_THK[2]});
}

/// y = x W^T
void linear(Pass const& pass, TensorView y_TO, ConstView x_TI, Linear const& w);

/// dy [T, O]: plain, or quantised for both backward products.
struct OutputGradient {
    ConstView plain_TO = {};
    QuantTensor rows_TO = {};
    QuantTensor columns_OT = {};
    Shape shape() const { return rows_TO.empty() ? plain_TO.shape : rows_TO.values.shape; }
};

/// Allocates a quantised gradient if linear_backward() uses one for this shape; otherwise returns an empty one.
OutputGradient quantised_gradient(Pass const& pass, LinearShape const& shape);

/// dW += dy^T x (dW = dy^T x if the pass is fresh) and dx = dy W (dx += dy W if `adds`). Either view may be empty.
/// Adapters add their part to dx; their own gradients are computed if x is given. x is read before dx is written.
struct LinearBackward {
    TensorView dx_TI = {};
    bool adds = false;
    TensorView dw_OI = {};
    OutputGradient dy;
    ConstView x_TI = {};                ///< read for dW
    ConstView w_OI = {};                ///< read for dx
    BlockLinear of = BlockLinear::qkv;  ///< for reports, where dx is computed
    Adapters dadapters = {};
    Adapters adapters = {};
};
void linear_backward(Pass const& pass, LinearBackward const& args);

/// y = x W^T for all tokens, gathered from parts of x. The rows of W are split. The same holds for its adapters below.
inline void spread(Pass const& pass, TensorView y_TO, TensorView x_PI, Linear const& w) {
    ConstView const x_TI = pass.stream.gather(x_PI);
    linear(pass, y_TO, x_TI, w);
    adapters_forward(pass, y_TO, x_TI, w.adapters);
}
/// dx = dy W in parts, and dW += dy^T x
void spread_backward(Pass const& pass, TensorView dx_PI, Linear const& dw, OutputGradient const& dy, TensorView x_PI,
                     Linear const& w);

/// y = x W^T in parts, from x of all tokens: W's columns are cut.
inline void join(Pass const& pass, TensorView y_PO, ConstView x_TI, Linear const& w) {
    TensorView const y_TO = pass.stream.partial(y_PO);
    linear(pass, y_TO, x_TI, w);
    adapters_forward(pass, y_TO, x_TI, w.adapters);
    pass.stream.add_up(y_PO);
}
/// dx = dy W and dW += dy^T x, from dy in parts
inline void join_backward(Pass const& pass, TensorView dx_TI, Linear const& dw, TensorView dy_PO, ConstView x_TI,
                          Linear const& w) {
    linear_backward(pass, {.dx_TI = dx_TI,
                           .dw_OI = dw.w_OI,
                           .dy = {.plain_TO = pass.stream.gather(dy_PO)},
                           .x_TI = x_TI,
                           .w_OI = w.w_OI,
                           .of = w.of,
                           .dadapters = dw.adapters,
                           .adapters = w.adapters});
}

/// Memory for the quantised operands, one product at a time.
QuantMemory allocate_quantised(Arena& arena, Pass const& pass, PrecisionOptions const& precision);

}  // namespace perigee
