// Matrix products by cuBLASLt: bf16 or quantised operands, fp32 accumulation, bf16 or fp32 output. The algorithm for a
// shape is selected once, at its first product.
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

    // As the operations of Ops. Throw Category::internal with the shape if cuBLASLt has no algorithm.
    void matmul(MatMul const& args);
    /// Throws Category::config unless the GPU has compute capability 9.0.
    void matmul8(QuantMatMul const& args);

  private:
    enum class Operands : uint8_t { bf16, quantised_rows, quantised_squares };  ///< the last two: tiles of b
    /// Everything an algorithm is chosen by.
    struct Key {
        int64_t m, n, k;
        Operands operands;
        bool transpose_a, transpose_b, accumulate, wide;
        uint32_t a_alignment = 0, b_alignment = 0, c_alignment = 0;  ///< bytes; set by multiply()
        auto operator<=>(Key const&) const = default;
    };
    /// Operands of one product; scales only if they are quantised.
    struct Memory {
        void const *a, *b;
        void const *a_scales, *b_scales;
        TensorView c;
    };
    struct Plan;
    void multiply(Key key, Memory const& memory);
    Plan& plan(Key const& key, Memory const& memory);
    void choose_by_trial(Plan& plan, std::span<cublasLtMatmulHeuristicResult_t const> candidates, Key const& key,
                         Memory const& memory);
    cublasStatus_t run(Plan& plan, cublasLtMatmulAlgo_t const& algorithm, bool accumulate, Memory const& memory);

    CudaDevice& device_;
    bool tune_;
    cublasLtHandle_t handle_ = nullptr;
    Buffer workspace_;
    std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace perigee
