#include "kernels/swiglu/swiglu.h"
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"

namespace perigee {

void CudaOps::swiglu_forward(TensorView y_TF, ConstView gate_up_T2F) {
    check_swiglu_forward(y_TF, gate_up_T2F);
    kernels::swiglu_forward(
        {.y = y_TF.as<bf16>(), .gate_up = gate_up_T2F.as<bf16>(), .tokens = y_TF[0], .width = y_TF[1]}, stream());
}

void CudaOps::swiglu_backward(TensorView dgate_up_T2F, ConstView dy_TF, ConstView gate_up_T2F) {
    check_swiglu_backward(dgate_up_T2F, dy_TF, gate_up_T2F);
    kernels::swiglu_backward({.dgate_up = dgate_up_T2F.as<bf16>(),
                              .dy = dy_TF.as<bf16>(),
                              .gate_up = gate_up_T2F.as<bf16>(),
                              .tokens = dy_TF[0],
                              .width = dy_TF[1]},
                             stream());
}

}  // namespace perigee
