// Quantised matrices and their products.
#include "kernels/quantize/quantize.h"
#include "ops/checks.h"
#include "ops/cuda/arguments.h"
#include "ops/cuda/cuda_ops.h"

namespace perigee {

void CudaOps::compute(Quantize const& args) {
    check(args);
    kernels::quantize({.to = quantized(args.to),
                       .transposed = quantized(args.transposed),
                       .x = args.x.as<bf16>(),
                       .rows = args.x[0],
                       .columns = args.x[1],
                       .squares = (args.to.empty() ? args.transposed : args.to).tiles == Tiles::squares},
                      stream());
    if (!args.counts_accumulated_K.empty())
        kernels::count_quantized(args.counts_accumulated_K.as<double>(), args.to.values.as<uint8_t>(),
                                 args.x.as<bf16>(), args.x.size(), stream());
}

void CudaOps::compute(QuantMatMul const& args) { blas_.matmul8(args); }

}  // namespace perigee
