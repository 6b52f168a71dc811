// Which kernels compute an attention: cuDNN's where every key of the past is attended and cuDNN takes the problem, the
// own ones over blocks otherwise.
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/dense_attention.h"

namespace perigee {
namespace {

/// With so few blocks in every document, MoBA is full attention.
bool attends_all(MobaOptions const* moba, std::span<int32_t const> cu_seqlens) {
    for (size_t d = 0; moba != nullptr && d + 1 < cu_seqlens.size(); ++d)
        if (!moba_covers_all(cu_seqlens[d + 1] - cu_seqlens[d], *moba)) return false;
    return true;
}

}  // namespace

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
