#include "ops/cuda/blas.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "ops/checks.h"
#include "ops/cuda/cublas_lt.h"
#include "ops/gpu_kernels.h"

namespace perigee {

namespace {

constexpr size_t kWorkspace = size_t{32} << 20;
constexpr int kCandidates = 16;

/// What cuBLASLt may assume of a pointer: its default where 16 bytes, the widest access, divide the address. Tensors
/// in a flat buffer follow each other without gaps, so the address may be a multiple of 2 only.
uint32_t alignment_of(void const* pointer) {
    constexpr uint32_t kDefault = 256, kWidest = 16;
    auto const address = reinterpret_cast<uintptr_t>(pointer);
    return address % kWidest == 0 ? kDefault : static_cast<uint32_t>(address & (~address + 1));
}

void check_blas(cublasStatus_t code, char const* call) {
    if (code != CUBLAS_STATUS_SUCCESS)
        fail(Category::internal, "{} failed: {}", call, CublasLt::get().status_name(code));
}

/// A row-major matrix [rows, columns] is column-major [columns, rows].
struct Layout {
    Layout(cudaDataType_t type, int64_t rows, int64_t columns) {
        check_blas(CublasLt::get().layout_create(&handle, type, static_cast<uint64_t>(columns),
                                                 static_cast<uint64_t>(rows), columns),
                   "cublasLtMatrixLayoutCreate");
    }
    ~Layout() { CublasLt::get().layout_destroy(handle); }
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

template <class T>
void set(cublasLtMatmulDesc_t handle, cublasLtMatmulDescAttributes_t what, T const& value) {
    check_blas(CublasLt::get().product_set(handle, what, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
}

cublasLtMatmulDesc_t describe(bool transpose_a, bool transpose_b) {
    cublasLtMatmulDesc_t handle = nullptr;
    check_blas(CublasLt::get().product_create(&handle, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    set(handle, CUBLASLT_MATMUL_DESC_TRANSA, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(handle, CUBLASLT_MATMUL_DESC_TRANSB, transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    return handle;
}

}  // namespace

/// Column-major, c^T = op(b)^T op(a)^T: cuBLASLt's first factor is our b.
struct Blas::Plan {
    explicit Plan(Key const& key)
        : quantised(key.operands != Operands::bf16),
          product(describe(key.transpose_b, key.transpose_a)),
          first(operand(key), key.transpose_b ? key.n : key.k, key.transpose_b ? key.k : key.n),
          second(operand(key), key.transpose_a ? key.k : key.m, key.transpose_a ? key.m : key.k),
          result(key.wide ? CUDA_R_32F : CUDA_R_16BF, key.m, key.n) {
        if (!quantised) return;
        set(product, CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
            key.operands == Operands::quantised_rows ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                                                     : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
        set(product, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
    }
    ~Plan() { CublasLt::get().product_destroy(product); }
    Plan(Plan const&) = delete;
    Plan& operator=(Plan const&) = delete;

    static cudaDataType_t operand(Key const& key) {
        return key.operands == Operands::bf16 ? CUDA_R_16BF : CUDA_R_8F_E4M3;
    }
    void scale_by(Memory const& memory) const {
        if (!quantised) return;
        set(product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, memory.b_scales);
        set(product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, memory.a_scales);
    }

    bool quantised;
    cublasLtMatmulDesc_t product;
    Layout first, second, result;
    cublasLtMatmulAlgo_t algorithm{};
};

Blas::Blas(CudaDevice& device, bool tune) : device_(device), tune_(tune), workspace_(device, kWorkspace) {
    check_blas(CublasLt::get().create(&handle_), "cublasLtCreate");
}

Blas::~Blas() {
    plans_.clear();
    CublasLt::get().destroy(handle_);
}

Blas::Plan& Blas::plan(Key const& key, Memory const& memory) {
    auto& plan = plans_[key];
    if (plan) return *plan;
    auto made = std::make_unique<Plan>(key);
    made->scale_by(memory);
    cublasLtMatmulPreference_t preference = nullptr;
    check_blas(CublasLt::get().preference_create(&preference), "cublasLtMatmulPreferenceCreate");
    check_blas(CublasLt::get().preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                                              sizeof kWorkspace),
               "cublasLtMatmulPreferenceSetAttribute");
    for (auto const& [what, alignment] : {std::pair{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b_alignment},
                                          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a_alignment},
                                          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.c_alignment},
                                          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.c_alignment}})
        check_blas(CublasLt::get().preference_set(preference, what, &alignment, sizeof alignment),
                   "cublasLtMatmulPreferenceSetAttribute");
    // Training repeats the same round numbers of tokens, decoding the same few; others are not worth a trial.
    bool const repeats = key.m % 128 == 0 || key.m <= 64;
    bool const tune = tune_ && repeats && key.n % 128 == 0 && key.k % 128 == 0;
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> candidates{};
    int found = 0;
    cublasStatus_t const code = CublasLt::get().get_heuristic(
        handle_, made->product, made->first.handle, made->second.handle, made->result.handle, made->result.handle,
        preference, tune ? kCandidates : 1, candidates.data(), &found);
    CublasLt::get().preference_destroy(preference);
    if (found == 0 && made->quantised)
        if (auto const kernels = gpu_kernels(device_); kernels && kernels->capability != 90)
            fail(
                Category::config,
                "precision.linear: products with quantised operands need a GPU of compute capability 9.0, and this one "
                "is of {}.{}",
                kernels->capability / 10, kernels->capability % 10);
    if (code != CUBLAS_STATUS_SUCCESS || found == 0)
        fail(Category::internal, "cuBLASLt has no algorithm for a {}product [{}, {}] = [{}, {}] [{}, {}]: {}",
             made->quantised ? "quantised " : "", key.m, key.n, key.m, key.k, key.k, key.n,
             CublasLt::get().status_name(code));
    made->algorithm = candidates[0].algo;
    if (found > 1) choose_by_trial(*made, std::span(candidates).first(static_cast<size_t>(found)), key, memory);
    plan = std::move(made);
    return *plan;
}

/// Rounds through all candidates, so that a clock that drifts is fair to them; the best time of each counts.
void Blas::choose_by_trial(Plan& plan, std::span<cublasLtMatmulHeuristicResult_t const> candidates, Key const& key,
                           Memory const& memory) try {
    auto const bytes = static_cast<size_t>(memory.c.bytes());
    Buffer const elsewhere(device_, key.accumulate ? bytes : 0);  // keeps trials from changing the sums
    Memory trial = memory;
    if (key.accumulate) trial.c.data = static_cast<std::byte*>(elsewhere.data());
    Timer const timer;
    std::array<float, kCandidates> best;
    best.fill(std::numeric_limits<float>::infinity());
    for (int round = 0; round < 3; ++round)
        for (size_t i = 0; i < candidates.size(); ++i) {
            timer.begin(device_.stream());
            if (run(plan, candidates[i].algo, key.accumulate, trial) != CUBLAS_STATUS_SUCCESS) continue;
            float const milliseconds = timer.end(device_.stream());
            if (round > 0) best[i] = std::min(best[i], milliseconds);
        }
    size_t const fastest = static_cast<size_t>(std::ranges::min_element(best) - best.begin());
    if (fastest < candidates.size()) plan.algorithm = candidates[fastest].algo;
} catch (OutOfMemory const&) {
    // Then the first has to do.
}

cublasStatus_t Blas::run(Plan& p, cublasLtMatmulAlgo_t const& algorithm, bool accumulate, Memory const& memory) {
    float const one = 1, beta = accumulate ? 1 : 0;
    p.scale_by(memory);
    void* const c = memory.c.data;
    return CublasLt::get().matmul(handle_, p.product, &one, memory.b, p.first.handle, memory.a, p.second.handle, &beta,
                                  c, p.result.handle, c, p.result.handle, &algorithm, workspace_.data(), kWorkspace,
                                  device_.stream());
}

void Blas::multiply(Key key, Memory const& memory) {
    if (key.m == 0 || key.n == 0) return;
    key.a_alignment = alignment_of(memory.a), key.b_alignment = alignment_of(memory.b);
    key.c_alignment = alignment_of(memory.c.data);
    Plan& p = plan(key, memory);
    check_blas(run(p, p.algorithm, key.accumulate, memory), "cublasLtMatmul");
}

void Blas::matmul(MatMul const& args) {
    auto const [m, n, k] = check(args);
    PERIGEE_CHECK(args.a.dtype == DType::bf16 && args.b.dtype == DType::bf16 &&
                      (args.c.dtype == DType::bf16 || args.c.dtype == DType::f32),
                  "a product of {} and {} in {}", to_string(args.a.dtype), to_string(args.b.dtype),
                  to_string(args.c.dtype));
    multiply({.m = m,
              .n = n,
              .k = k,
              .operands = Operands::bf16,
              .transpose_a = args.transpose_a,
              .transpose_b = args.transpose_b,
              .accumulate = args.accumulate,
              .wide = args.c.dtype == DType::f32},
             {.a = args.a.data, .b = args.b.data, .a_scales = nullptr, .b_scales = nullptr, .c = args.c});
}

void Blas::matmul8(QuantMatMul const& args) {
    auto const [m, n, k] = check(args);
    PERIGEE_CHECK(args.c.dtype == DType::bf16 || args.c.dtype == DType::f32, "a quantised product in {}",
                  to_string(args.c.dtype));
    bool const rows = args.b.tiles == Tiles::rows;
    multiply({.m = m,
              .n = n,
              .k = k,
              .operands = rows ? Operands::quantised_rows : Operands::quantised_squares,
              .transpose_a = false,
              .transpose_b = true,
              .accumulate = args.accumulate,
              .wide = args.c.dtype == DType::f32},
             {.a = args.a.values.data,
              .b = args.b.values.data,
              .a_scales = args.a.scales.data,
              .b_scales = args.b.scales.data,
              .c = args.c});
}

}  // namespace perigee
