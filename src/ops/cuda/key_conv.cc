#include "ops/cuda/cuda_ops.h"

namespace perigee {

void CudaOps::compute(KeyConvForward const&) { fail(Category::config, "attention.key_conv: runs on the CPU only"); }

void CudaOps::compute(KeyConvBackward const&) { fail(Category::config, "attention.key_conv: runs on the CPU only"); }

}  // namespace perigee
