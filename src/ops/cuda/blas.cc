#include "ops/cuda/blas.h"

#include "ops/checks.h"

namespace perigee {

namespace {

constexpr size_t kWorkspace = size_t{32} << 20;

void check_blas(cublasStatus_t code, char const* call) {
    if (code != CUBLAS_STATUS_SUCCESS) fail(Category::internal, "{} failed: {}", call, cublasLtGetStatusName(code));
}

/// A row-major matrix [rows, columns] is column-major [columns, rows].
struct Layout {
    Layout(cudaDataType_t type, int64_t rows, int64_t columns) {
        check_blas(cublasLtMatrixLayoutCreate(&handle, type, static_cast<uint64_t>(columns),
                                              static_cast<uint64_t>(rows), columns),
                   "cublasLtMatrixLayoutCreate");
    }
    ~Layout() { cublasLtMatrixLayoutDestroy(handle); }
    Layout(Layout const&) = delete;
    Layout& operator=(Layout const&) = delete;
    cublasLtMatrixLayout_t handle = nullptr;
};

cublasLtMatmulDesc_t describe(bool transpose_a, bool transpose_b) {
    cublasLtMatmulDesc_t handle = nullptr;
    check_blas(cublasLtMatmulDescCreate(&handle, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    cublasOperation_t const a = transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, b = transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    check_blas(cublasLtMatmulDescSetAttribute(handle, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a), "transpose a");
    check_blas(cublasLtMatmulDescSetAttribute(handle, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b), "transpose b");
    return handle;
}

}  // namespace

/// Column-major, c^T = op(b)^T op(a)^T: cuBLASLt's first factor is our b.
struct Blas::Plan {
    explicit Plan(Key const& key)
        : product(describe(key.transpose_b, key.transpose_a)),
          first(CUDA_R_16BF, key.transpose_b ? key.n : key.k, key.transpose_b ? key.k : key.n),
          second(CUDA_R_16BF, key.transpose_a ? key.k : key.m, key.transpose_a ? key.m : key.k),
          result(key.wide ? CUDA_R_32F : CUDA_R_16BF, key.m, key.n) {}
    ~Plan() { cublasLtMatmulDescDestroy(product); }
    Plan(Plan const&) = delete;
    Plan& operator=(Plan const&) = delete;

    cublasLtMatmulDesc_t product;
    Layout first, second, result;
    cublasLtMatmulAlgo_t algorithm{};
};

Blas::Blas(CudaDevice& device) : device_(device), workspace_(device, kWorkspace) {
    check_blas(cublasLtCreate(&handle_), "cublasLtCreate");
}

Blas::~Blas() {
    plans_.clear();
    cublasLtDestroy(handle_);
}

Blas::Plan const& Blas::plan(Key const& key) {
    auto& plan = plans_[key];
    if (plan) return *plan;
    plan = std::make_unique<Plan>(key);
    cublasLtMatmulPreference_t preference = nullptr;
    check_blas(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    check_blas(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                                                    sizeof kWorkspace),
               "cublasLtMatmulPreferenceSetAttribute");
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    cublasStatus_t const code =
        cublasLtMatmulAlgoGetHeuristic(handle_, plan->product, plan->first.handle, plan->second.handle,
                                       plan->result.handle, plan->result.handle, preference, 1, &best, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    if (code != CUBLAS_STATUS_SUCCESS || found == 0)
        fail(Category::internal, "cuBLASLt has no algorithm for a product [{}, {}] = [{}, {}] [{}, {}]: {}", key.m,
             key.n, key.m, key.k, key.k, key.n, cublasLtGetStatusName(code));
    plan->algorithm = best.algo;
    return *plan;
}

void Blas::matmul(MatMul const& args) {
    auto const [m, n, k] = check(args);
    PERIGEE_CHECK(args.a.dtype == DType::bf16 && args.b.dtype == DType::bf16 &&
                      (args.c.dtype == DType::bf16 || args.c.dtype == DType::f32),
                  "a product of {} and {} in {}", to_string(args.a.dtype), to_string(args.b.dtype),
                  to_string(args.c.dtype));
    if (m == 0 || n == 0) return;
    Plan const& p = plan({.m = m,
                          .n = n,
                          .k = k,
                          .transpose_a = args.transpose_a,
                          .transpose_b = args.transpose_b,
                          .accumulate = args.accumulate,
                          .wide = args.c.dtype == DType::f32});
    float const one = 1, beta = args.accumulate ? 1 : 0;
    check_blas(cublasLtMatmul(handle_, p.product, &one, args.b.data, p.first.handle, args.a.data, p.second.handle,
                              &beta, args.c.data, p.result.handle, args.c.data, p.result.handle, &p.algorithm,
                              workspace_.data(), kWorkspace, device_.stream()),
               "cublasLtMatmul");
}

}  // namespace perigee
