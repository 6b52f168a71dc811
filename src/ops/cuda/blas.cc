#include "ops/cuda/blas.h"

#include <algorithm>
#include <array>
#include <limits>

#include "ops/checks.h"

namespace perigee {

namespace {

constexpr size_t kWorkspace = size_t{32} << 20;
constexpr int kCandidates = 16;

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

/// Milliseconds that the device spends on what is queued between begin() and end().
class Timer {
  public:
    Timer() {
        check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
        check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
    }
    ~Timer() {
        cudaEventDestroy(begin_);
        cudaEventDestroy(end_);
    }
    Timer(Timer const&) = delete;
    Timer& operator=(Timer const&) = delete;

    void begin(cudaStream_t stream) const { check_cuda(cudaEventRecord(begin_, stream), "cudaEventRecord"); }
    float end(cudaStream_t stream) const {
        check_cuda(cudaEventRecord(end_, stream), "cudaEventRecord");
        check_cuda(cudaEventSynchronize(end_), "cudaEventSynchronize");
        float milliseconds = 0;
        check_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
        return milliseconds;
    }

  private:
    cudaEvent_t begin_ = nullptr, end_ = nullptr;
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

Blas::Blas(CudaDevice& device, bool tune) : device_(device), tune_(tune), workspace_(device, kWorkspace) {
    check_blas(cublasLtCreate(&handle_), "cublasLtCreate");
}

Blas::~Blas() {
    plans_.clear();
    cublasLtDestroy(handle_);
}

Blas::Plan const& Blas::plan(Key const& key, MatMul const& args) {
    auto& plan = plans_[key];
    if (plan) return *plan;
    auto made = std::make_unique<Plan>(key);
    cublasLtMatmulPreference_t preference = nullptr;
    check_blas(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    check_blas(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                                                    sizeof kWorkspace),
               "cublasLtMatmulPreferenceSetAttribute");
    // Training repeats the same round numbers of tokens, decoding the same few; others are not worth a trial.
    bool const repeats = key.m % 128 == 0 || key.m <= 64;
    bool const tune = tune_ && repeats && key.n % 128 == 0 && key.k % 128 == 0;
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> candidates{};
    int found = 0;
    cublasStatus_t const code = cublasLtMatmulAlgoGetHeuristic(
        handle_, made->product, made->first.handle, made->second.handle, made->result.handle, made->result.handle,
        preference, tune ? kCandidates : 1, candidates.data(), &found);
    cublasLtMatmulPreferenceDestroy(preference);
    if (code != CUBLAS_STATUS_SUCCESS || found == 0)
        fail(Category::internal, "cuBLASLt has no algorithm for a product [{}, {}] = [{}, {}] [{}, {}]: {}", key.m,
             key.n, key.m, key.k, key.k, key.n, cublasLtGetStatusName(code));
    made->algorithm = candidates[0].algo;
    if (found > 1) choose_by_trial(*made, std::span(candidates).first(static_cast<size_t>(found)), args);
    plan = std::move(made);
    return *plan;
}

/// Rounds through all candidates, so that a clock that drifts is fair to them; the best time of each counts.
void Blas::choose_by_trial(Plan& plan, std::span<cublasLtMatmulHeuristicResult_t const> candidates,
                           MatMul const& args) try {
    Buffer const elsewhere(device_, args.accumulate ? static_cast<size_t>(args.c.bytes()) : 0);  // sums stay unharmed
    void* const result = args.accumulate ? elsewhere.data() : args.c.data;
    Timer const timer;
    std::array<float, kCandidates> best;
    best.fill(std::numeric_limits<float>::infinity());
    for (int round = 0; round < 3; ++round)
        for (size_t i = 0; i < candidates.size(); ++i) {
            timer.begin(device_.stream());
            if (run(plan, candidates[i].algo, args, result) != CUBLAS_STATUS_SUCCESS) continue;
            float const milliseconds = timer.end(device_.stream());
            if (round > 0) best[i] = std::min(best[i], milliseconds);
        }
    size_t const fastest = static_cast<size_t>(std::ranges::min_element(best) - best.begin());
    if (fastest < candidates.size()) plan.algorithm = candidates[fastest].algo;
} catch (OutOfMemory const&) {
    // Then the first has to do.
}

cublasStatus_t Blas::run(Plan const& p, cublasLtMatmulAlgo_t const& algorithm, MatMul const& args, void* result) {
    float const one = 1, beta = args.accumulate ? 1 : 0;
    return cublasLtMatmul(handle_, p.product, &one, args.b.data, p.first.handle, args.a.data, p.second.handle, &beta,
                          result, p.result.handle, result, p.result.handle, &algorithm, workspace_.data(), kWorkspace,
                          device_.stream());
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
                          .wide = args.c.dtype == DType::f32},
                         args);
    check_blas(run(p, p.algorithm, args, args.c.data), "cublasLtMatmul");
}

}  // namespace perigee
