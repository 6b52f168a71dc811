// A block's matrix products as tensor parallelism cuts them: of rows of W, which read all tokens, and of its columns,
// whose partial sums are added up over the ranks.
#pragma once

#include "model/block.h"

namespace perigee {

inline TensorView matrix(TensorView heads_THK) {
    return heads_THK.reshape({heads_THK[0], heads_THK[1] * heads_THK[2]});
}

/// y = x W^T of all tokens, from x in parts: W's rows are cut.
inline void spread(Pass const& pass, TensorView y_TO, TensorView x_PI, ConstView w_OI) {
    pass.ops.matmul({.c = y_TO, .a = pass.stream.gather(x_PI), .b = w_OI, .transpose_b = true});
}
/// dx = dy W in parts, and dW += dy^T x
inline void spread_backward(Pass const& pass, TensorView dx_PI, TensorView dw_OI, ConstView dy_TO, TensorView x_PI,
                            ConstView w_OI) {
    pass.ops.matmul(
        {.c = dw_OI, .a = dy_TO, .b = pass.stream.gather(x_PI), .transpose_a = true, .accumulate = !pass.fresh});
    pass.ops.matmul({.c = pass.stream.partial(dx_PI), .a = dy_TO, .b = w_OI});
    pass.stream.add_up(dx_PI);
}

/// y = x W^T in parts, from x of all tokens: W's columns are cut.
inline void join(Pass const& pass, TensorView y_PO, ConstView x_TI, ConstView w_OI) {
    pass.ops.matmul({.c = pass.stream.partial(y_PO), .a = x_TI, .b = w_OI, .transpose_b = true});
    pass.stream.add_up(y_PO);
}
/// dx = dy W and dW += dy^T x, from dy in parts
inline void join_backward(Pass const& pass, TensorView dx_TI, TensorView dw_OI, TensorView dy_PO, ConstView x_TI,
                          ConstView w_OI) {
    ConstView const dy_TO = pass.stream.gather(dy_PO);
    pass.ops.matmul({.c = dw_OI, .a = dy_TO, .b = x_TI, .transpose_a = true, .accumulate = !pass.fresh});
    pass.ops.matmul({.c = dx_TI, .a = dy_TO, .b = w_OI});
}

}  // namespace perigee
