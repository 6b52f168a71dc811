#include "kernels/swiglu/swiglu.h"
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"

namespace perigee {

void CudaOps::compute(SwigluForward const& args) {
    check(args);
    auto const [y_TF, gate_up_T2F] = args;
    kernels::swiglu_forward(
        {.y = y_TF.as<bf16>(), .gate_up = gate_up_T2F.as<bf16>(), .tokens = y_TF[0], .width = y_TF[1]}, stream());
}

void CudaOps::compute(SwigluBackward const& args) {
    check(args);
    auto const [dgate_up_T2F, dy_TF, gate_up_T2F] = args;
    kernels::swiglu_backward({.dgate_up = dgate_up_T2F.as<bf16>(),
                              .dy = dy_TF.as<bf16>(),
                              .gate_up = gate_up_T2F.as<bf16>(),
                              .tokens = dy_TF[0],
                              .width = dy_TF[1]},
                             stream());
}

}  // namespace perigee
