#include "kernels/swiglu/swiglu.h"
#include "ops/checks.h"
#include "ops/cuda/arguments.h"
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
    kernels::swiglu_backward({.dgate_up = optional<bf16>(args.dgate_up_T2F),
                              .dy = args.dy_TF.as<bf16>(),
                              .gate_up = args.gate_up_T2F.as<bf16>(),
                              .tokens = args.dy_TF[0],
                              .width = args.dy_TF[1],
                              .quantised = quantized(args.quantised_T2F),
                              .transposed = quantized(args.transposed_2FT)},
                             stream());
}

}  // namespace perigee
