// Linked in place of dense_attention.cc when the build has no cuDNN: the own kernels take all problems.
#include "ops/cuda/dense_attention.h"
#include "ops/gpu_attention.h"

namespace perigee {

bool build_uses_cudnn() { return false; }

struct DenseAttention::Impl {
    std::vector<int64_t> tables;
};

DenseAttention::DenseAttention(CudaDevice&, Staging&, std::function<void*(size_t)>, Check) : impl_(new Impl) {}
DenseAttention::~DenseAttention() = default;
void DenseAttention::forward(AttentionForward const&) { fail(Category::internal, "this build has no cuDNN"); }
void DenseAttention::backward(AttentionBackward const&) { fail(Category::internal, "this build has no cuDNN"); }
std::vector<int64_t> const& DenseAttention::tables() const { return impl_->tables; }
void DenseAttention::restore(std::vector<int64_t> const&) {}
std::pair<void const*, int64_t> DenseAttention::tables_place() const { return {}; }
std::string DenseAttention::version() { return "no cuDNN"; }

}  // namespace perigee
