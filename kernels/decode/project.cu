#include "kernels/decode/project.h"

#include "kernels/decode/heads.cuh"
#include "kernels/gemv/stream.cuh"

namespace perigee::decode {

void project(Project const& x, cudaStream_t stream) {
    gemv_detail::run(x.product, x.product.n / gemv_detail::kColumns, heads_of(x), stream);
}

}  // namespace perigee::decode
