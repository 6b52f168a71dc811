// A block's matrix products, in the precision of the pass, as tensor parallelism cuts them: of rows of W, which read
// all tokens, and of its columns, whose partial sums are added up over the ranks.
#pragma once

#include "model/block.h"

namespace perigee {

inline TensorView matrix(TensorView heads_THK) {
    return heads_THK.reshape({heads_THK[0], heads_THK[1] * heads_THK[2]});
}

/// y = x W^T
void linear(Pass const& pass, TensorView y_TO, ConstView x_TI, ConstView w_OI);

/// dy [T, O]: plain, or quantised as both products take it.
struct OutputGradient {
    ConstView plain_TO = {};
    QuantTensor rows_TO = {};
    QuantTensor columns_OT = {};
    Shape shape() const { return rows_TO.empty() ? plain_TO.shape : rows_TO.values.shape; }
};

/// Memory of the pass for a quantised gradient, where linear_backward of this shape takes one; else nothing.
OutputGradient quantised_gradient(Pass const& pass, LinearShape const& shape);

/// dW += dy^T x, or = where the pass is fresh, and dx = dy W, or += where it `adds`. Either may be an empty view. What
/// adapters add to both comes with them: their own gradients where there is x, which then is read before dx is written.
struct LinearBackward {
    TensorView dx_TI = {};
    bool adds = false;
    TensorView dw_OI = {};
    OutputGradient dy;
    ConstView x_TI = {};  ///< read for dW
    ConstView w_OI = {};  ///< read for dx
    Adapters dadapters = {};
    Adapters adapters = {};
};
void linear_backward(Pass const& pass, LinearBackward const& args);

/// y = x W^T of all tokens, from x in parts: W's rows are cut. Adapters are W's in all of this.
inline void spread(Pass const& pass, TensorView y_TO, TensorView x_PI, Linear const& w) {
    ConstView const x_TI = pass.stream.gather(x_PI);
    linear(pass, y_TO, x_TI, w.w_OI);
    adapters_forward(pass, y_TO, x_TI, w.adapters);
}
/// dx = dy W in parts, and dW += dy^T x
void spread_backward(Pass const& pass, TensorView dx_PI, Linear const& dw, OutputGradient const& dy, TensorView x_PI,
                     Linear const& w);

/// y = x W^T in parts, from x of all tokens: W's columns are cut.
inline void join(Pass const& pass, TensorView y_PO, ConstView x_TI, Linear const& w) {
    TensorView const y_TO = pass.stream.partial(y_PO);
    linear(pass, y_TO, x_TI, w.w_OI);
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
                           .dadapters = dw.adapters,
                           .adapters = w.adapters});
}

/// Memory for the quantised operands of one product at a time.
QuantMemory allocate_quantised(Arena& arena, Pass const& pass, PrecisionOptions const& precision);

}  // namespace perigee
