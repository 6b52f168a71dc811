// Matrix products by cuBLASLt: bf16 in, fp32 accumulation, bf16 or fp32 out. The algorithm for each shape is chosen
// once, at its first product.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <map>
#include <memory>
#include <span>

#include "device/cuda/cuda_device.h"
#include "ops/ops.h"

namespace perigee {

class Blas {
  public:
    /// With `tune`, the fastest of cuBLASLt's candidates by trial; otherwise the one it names first, always the same.
    Blas(CudaDevice& device, bool tune);
    ~Blas();
    Blas(Blas const&) = delete;
    Blas& operator=(Blas const&) = delete;

    /// As Ops::matmul. Throws Category::internal, naming the shape, where cuBLASLt has no algorithm.
    void matmul(MatMul const& args);

  private:
    /// Everything an algorithm is chosen by.
    struct Key {
        int64_t m, n, k;
        bool transpose_a, transpose_b, accumulate, wide;
        auto operator<=>(Key const&) const = default;
    };
    struct Plan;
    Plan const& plan(Key const& key, MatMul const& args);
    void choose_by_trial(Plan& plan, std::span<cublasLtMatmulHeuristicResult_t const> candidates, MatMul const& args);
    cublasStatus_t run(Plan const& plan, cublasLtMatmulAlgo_t const& algorithm, MatMul const& args, void* result);

    CudaDevice& device_;
    bool tune_;
    cublasLtHandle_t handle_ = nullptr;
    Buffer workspace_;
    std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace perigee
