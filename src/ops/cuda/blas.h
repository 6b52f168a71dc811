// Matrix products by cuBLASLt: bf16 in, fp32 accumulation, bf16 or fp32 out. The algorithm for each shape is looked up
// once.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <map>

#include "device/cuda/cuda_device.h"
#include "ops/ops.h"

namespace perigee {

class Blas {
  public:
    explicit Blas(CudaDevice& device);
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
    Plan const& plan(Key const& key);

    CudaDevice& device_;
    cublasLtHandle_t handle_ = nullptr;
    Buffer workspace_;
    std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace perigee
