#include "ops/cuda/cuda_ops.h"

namespace perigee {

namespace {
[[noreturn]] void missing(char const* name) { fail(Category::internal, "{} on the GPU is not there yet", name); }
}  // namespace

void CudaOps::moba_select(MobaSelect const&) { missing("moba_select"); }

}  // namespace perigee
