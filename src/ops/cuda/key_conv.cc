#include "kernels/key_conv/key_conv.h"

#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"

namespace perigee {

namespace {

kernels::KeyConvShape shape_of(ConstView x_TC, ConstView w_CW, ConstView y_TX, int64_t first) {
    PERIGEE_CHECK(x_TC[1] % 2 == 0 && first % 2 == 0 && y_TX[1] % 2 == 0, "columns [{}, {}) of {}", first,
                  first + x_TC[1], y_TX.shape.str());
    return {.tokens = x_TC[0],
            .channels = static_cast<int>(x_TC[1]),
            .taps = static_cast<int>(w_CW[1]),
            .width = y_TX[1],
            .first = first};
}

}  // namespace

void CudaOps::compute(KeyConvForward const& args) {
    check(args);
    kernels::key_conv_forward({.shape = shape_of(args.x_TC, args.w_CW, args.y_TX, args.first),
                               .y = args.y_TX.as<bf16>(),
                               .x = args.x_TC.as<bf16>(),
                               .w = args.w_CW.as<bf16>(),
                               .positions = args.positions_T.as<int32_t>()},
                              stream());
}

void CudaOps::compute(KeyConvBackward const& args) {
    check(args);
    kernels::KeyConvShape const shape = shape_of(args.x_TC, args.w_CW, args.dx_TX, args.first);
    kernels::key_conv_backward({.shape = shape,
                                .dx = args.dx_TX.as<bf16>(),
                                .dy = args.dy_TC.as<bf16>(),
                                .x = args.x_TC.as<bf16>(),
                                .w = args.w_CW.as<bf16>(),
                                .positions = args.positions_T.as<int32_t>(),
                                .dw_accumulated = args.dw_accumulated_CW.as<float>(),
                                .scratch = static_cast<float*>(scratch(kernels::key_conv_backward_scratch(shape)))},
                               stream());
}

}  // namespace perigee
