// Which kernels compute an attention: MoBA's, cuDNN's, or the own full ones.
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/dense_attention.h"

namespace perigee {

void CudaOps::attention_forward(AttentionForward const& args) {
    check(args);
    if (args.moba != nullptr) fail(Category::internal, "MoBA on the GPU is not there yet");
    PERIGEE_CHECK(DenseAttention::takes(args.q_THK, args.k_TGK), "full attention of {} and {}", args.q_THK.shape.str(),
                  args.k_TGK.shape.str());
    dense_->forward(args);
}

void CudaOps::attention_backward(AttentionBackward const& args) {
    check(args);
    if (args.moba != nullptr) fail(Category::internal, "MoBA on the GPU is not there yet");
    PERIGEE_CHECK(DenseAttention::takes(args.q_THK, args.k_TGK) && !args.add_to_dkv, "full attention of {} and {}",
                  args.q_THK.shape.str(), args.k_TGK.shape.str());
    dense_->backward(args);
}

}  // namespace perigee
