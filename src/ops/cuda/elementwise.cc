#include "ops/cuda/cuda_ops.h"

namespace perigee {

namespace {
[[noreturn]] void missing(char const* name) { fail(Category::internal, "{} on the GPU is not there yet", name); }
}  // namespace

void CudaOps::copy(TensorView, ConstView) { missing("copy"); }
void CudaOps::copy_rows(CopyRows const&) { missing("copy_rows"); }
void CudaOps::fill_normal(FillNormal const&) { missing("fill_normal"); }
void CudaOps::add(TensorView, ConstView) { missing("add"); }
void CudaOps::scale(TensorView, double) { missing("scale"); }
void CudaOps::embedding_forward(TensorView, ConstView, ConstView, int64_t) { missing("embedding_forward"); }
void CudaOps::embedding_backward(TensorView, ConstView, ConstView, int64_t) { missing("embedding_backward"); }
void CudaOps::rmsnorm_forward(RmsNormForward const&) { missing("rmsnorm_forward"); }
void CudaOps::rmsnorm_backward(RmsNormBackward const&) { missing("rmsnorm_backward"); }
void CudaOps::rope_table(TensorView, TensorView, ConstView, std::span<double const>, double) { missing("rope_table"); }
void CudaOps::qkv_forward(QkvForward const&) { missing("qkv_forward"); }
void CudaOps::qkv_backward(QkvBackward const&) { missing("qkv_backward"); }
void CudaOps::swiglu_forward(TensorView, ConstView) { missing("swiglu_forward"); }
void CudaOps::swiglu_backward(TensorView, ConstView, ConstView) { missing("swiglu_backward"); }
void CudaOps::softmax_stats(SoftmaxStats const&) { missing("softmax_stats"); }
void CudaOps::softmax_rescale(TensorView, ConstView, ConstView) { missing("softmax_rescale"); }
void CudaOps::cross_entropy(CrossEntropy const&) { missing("cross_entropy"); }
void CudaOps::squared_norm(TensorView, ConstView) { missing("squared_norm"); }
void CudaOps::weighted_sum(TensorView, ConstView, ConstView) { missing("weighted_sum"); }
void CudaOps::adamw(AdamW const&) { missing("adamw"); }

}  // namespace perigee
