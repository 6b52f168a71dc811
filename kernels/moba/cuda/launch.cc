#include "kernels/moba/cuda/launch.h"

#include "base/error.h"

namespace perigee::moba {

void check_launch(Launch const& how) {
    PERIGEE_CHECK(how.x < int64_t{1} << 31 && how.y < int64_t{1} << 16, "{}: a grid of {} x {}", how.name, how.x,
                  how.y);
}

void check_cuda_call(cudaError_t code, char const* name) {
    PERIGEE_CHECK(code == cudaSuccess, "{}: {}", name, cudaGetErrorString(code));
}

void refuse_head_dim(int64_t head_dim) { fail(Category::internal, "no kernels for head_dim {}", head_dim); }

}  // namespace perigee::moba
