#include "ops/cuda/cublas_lt.h"

#include <gtest/gtest.h>

namespace perigee {
namespace {

/// What a product is described by is the host's, so the functions can be called without a GPU.
TEST(CublasLt, DescribesAProduct) {
    CublasLt const& lt = CublasLt::get();
    EXPECT_STREQ(lt.status_name(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");

    cublasLtMatmulDesc_t product = nullptr;
    ASSERT_EQ(lt.product_create(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    cublasOperation_t const transposed = CUBLAS_OP_T;
    EXPECT_EQ(lt.product_set(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(lt.product_set(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, 1), CUBLAS_STATUS_INVALID_VALUE);

    cublasLtMatrixLayout_t layout = nullptr;
    ASSERT_EQ(lt.layout_create(&layout, CUDA_R_16BF, 64, 32, 64), CUBLAS_STATUS_SUCCESS);
    cublasLtMatmulPreference_t preference = nullptr;
    ASSERT_EQ(lt.preference_create(&preference), CUBLAS_STATUS_SUCCESS);
    size_t const most = 1 << 20;
    EXPECT_EQ(lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most),
              CUBLAS_STATUS_SUCCESS);

    EXPECT_EQ(lt.preference_destroy(preference), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(lt.layout_destroy(layout), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(lt.product_destroy(product), CUBLAS_STATUS_SUCCESS);
}

}  // namespace
}  // namespace perigee
