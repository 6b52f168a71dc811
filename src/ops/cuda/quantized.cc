// Quantised matrices and their products: not on a GPU.
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"

namespace perigee {

void CudaOps::compute(Quantize const& args) {
    check(args);
    fail(Category::config, "precision.linear: products with quantised operands run on the CPU alone");
}

void CudaOps::compute(QuantMatMul const& args) {
    check(args);
    fail(Category::config, "precision.linear: products with quantised operands run on the CPU alone");
}

}  // namespace perigee
