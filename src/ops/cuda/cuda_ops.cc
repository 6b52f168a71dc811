#include "ops/cuda/cuda_ops.h"

#include <algorithm>

#include "ops/checks.h"
#include "ops/cuda/dense_attention.h"

namespace perigee {

CudaOps::CudaOps(CudaDevice& device, bool deterministic)
    : device_(device),
      deterministic_(deterministic),
      staging_(device),
      blas_(device, /*tune=*/!deterministic),
      dense_(std::make_unique<DenseAttention>(device, staging_, [this](size_t bytes) { return scratch(bytes); })) {}

CudaOps::~CudaOps() = default;

void CudaOps::upload(TensorView to, void const* from) {
    staging_.upload(to.data, from, static_cast<size_t>(to.bytes()));
}
void CudaOps::download(void* to, ConstView from) { device_.copy(to, from.data, static_cast<size_t>(from.bytes())); }

void CudaOps::fill_zero(TensorView x) {
    check_cuda(cudaMemsetAsync(x.data, 0, static_cast<size_t>(x.bytes()), stream()), "cudaMemsetAsync");
}

void CudaOps::matmul(MatMul const& args) { blas_.matmul(args); }

void* CudaOps::scratch(size_t bytes) {
    if (scratch_.bytes() < bytes) {
        device_.synchronize();  // earlier operations may still use it
        scratch_ = {};
        scratch_ = Buffer(device_, bytes);
    }
    return scratch_.data();
}

int32_t const* CudaOps::borders(std::span<int32_t const> cu_seqlens) {
    if (!std::ranges::equal(cu_seqlens, known_borders_)) {
        if (borders_.bytes() < cu_seqlens.size_bytes()) {
            device_.synchronize();
            borders_ = {};
            borders_ = Buffer(device_, std::max<size_t>(2 * cu_seqlens.size_bytes(), 4096));
        }
        staging_.upload(borders_.data(), cu_seqlens.data(), cu_seqlens.size_bytes());
        known_borders_.assign(cu_seqlens.begin(), cu_seqlens.end());
    }
    return static_cast<int32_t const*>(borders_.data());
}

std::unique_ptr<Ops> make_cuda_ops(Device& cuda, bool deterministic) {
    auto* const device = dynamic_cast<CudaDevice*>(&cuda);
    PERIGEE_CHECK(device != nullptr, "operations of a GPU on {}", cuda.name());
    return std::make_unique<CudaOps>(*device, deterministic);
}

}  // namespace perigee
