// Which kernels compute an attention: cuDNN's where gpu_attention.h says so, the own ones over blocks otherwise.
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/dense_attention.h"
#include "ops/gpu_attention.h"

namespace perigee {

void CudaOps::compute(AttentionForward const& args) {
    check(args);
    if (goes_to_cudnn(args))
        dense_->forward(args);
    else
        block_attention_forward(args);
}

void CudaOps::compute(AttentionBackward const& args) {
    check(args);
    if (goes_to_cudnn(args, options_.deterministic))
        dense_->backward(args);
    else
        block_attention_backward(args);
}

}  // namespace perigee
