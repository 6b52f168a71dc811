// Which kernels compute an attention: cuDNN's where every key of the past is attended and cuDNN takes the problem, the
// own ones over blocks otherwise.
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/dense_attention.h"
#include "ops/gpu_attention.h"

namespace perigee {

void CudaOps::attention_forward(AttentionForward const& args) {
    check(args);
    if (attends_all(args.moba, args.cu_seqlens) && DenseAttention::takes(args.q_THK, args.k_TGK))
        dense_->forward(args);
    else
        block_attention_forward(args);
}

void CudaOps::attention_backward(AttentionBackward const& args) {
    check(args);
    bool const dense = attends_all(args.moba, args.cu_seqlens) && DenseAttention::takes(args.q_THK, args.k_TGK);
    if (dense && !args.add_to_dkv && !options_.deterministic)
        dense_->backward(args);
    else
        block_attention_backward(args);
}

}  // namespace perigee
