#include "kernels/rmsnorm/rmsnorm.h"
#include "ops/checks.h"
#include "ops/cuda/arguments.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/gpu_limits.h"

namespace perigee {

void CudaOps::compute(RmsNormForward const& args) {
    check(args);
    check_gpu_norm(args.x_TD[1]);
    bool const joins = !args.residual_TD.empty();
    kernels::rmsnorm_forward({.y = args.y_TD.as<bf16>(),
                              .rstd = args.rstd_T.as<float>(),
                              .x = args.x_TD.as<bf16>(),
                              .w = args.w_D.as<bf16>(),
                              .residual = optional<bf16>(args.residual_TD),
                              .sum = joins ? args.sum_TD.as<bf16>() : nullptr,
                              .tokens = args.x_TD[0],
                              .width = args.x_TD[1],
                              .eps = static_cast<float>(args.eps)},
                             stream());
}

void CudaOps::compute(RmsNormBackward const& args) {
    check(args);
    int64_t const tokens = args.x_TD[0], width = args.x_TD[1];
    check_gpu_norm(width);
    kernels::rmsnorm_backward(
        {.dx = args.dx_TD.as<bf16>(),
         .dw_accumulated = args.dw_accumulated_D.as<float>(),
         .dy = args.dy_TD.as<bf16>(),
         .x = args.x_TD.as<bf16>(),
         .w = args.w_D.as<bf16>(),
         .rstd = args.rstd_T.as<float>(),
         .dresidual = optional<bf16>(args.dresidual_TD),
         .tokens = tokens,
         .width = width,
         .scratch = static_cast<float*>(scratch(kernels::rmsnorm_backward_scratch(tokens, width)))},
        stream());
}

}  // namespace perigee
