#include "ops/cuda/cuda_ops.h"

#include <algorithm>

#include "kernels/block_sparse_attention/block_sparse_attention.h"
#include "kernels/gemv/gemv.h"
#include "ops/checks.h"
#include "ops/cuda/dense_attention.h"

namespace perigee {

CudaOps::CudaOps(CudaDevice& device, CudaOptions const& options)
    : device_(device),
      options_(options),
      staging_(device),
      blas_(device, /*tune=*/!options.deterministic),
      dense_(std::make_unique<DenseAttention>(device, staging_, [this](size_t bytes) { return scratch(bytes); })),
      plans_(kernel_arch(), options.deterministic, options.moba_scratch) {}

CudaOps::~CudaOps() = default;

void CudaOps::compute(Upload const& args) {
    staging_.upload(args.to.data, args.from, static_cast<size_t>(args.to.bytes()));
}
void CudaOps::compute(Download const& args) {
    device_.copy(args.to, args.from.data, static_cast<size_t>(args.from.bytes()));
}

void CudaOps::compute(FillZero const& args) {
    check_cuda(cudaMemsetAsync(args.x.data, 0, static_cast<size_t>(args.x.bytes()), stream()), "cudaMemsetAsync");
}

void CudaOps::compute(MatMul const& args) {
    if (args.transpose_b && !args.transpose_a && args.c.dtype == DType::bf16) {
        auto const [m, n, k] = check(args);
        kernels::Gemv const few_rows{.x = args.a.as<bf16>(), .w = args.b.as<bf16>(), .rows = m, .n = n, .k = k};
        if (kernels::takes_gemv(few_rows)) return kernels::gemv(few_rows, args.c.as<bf16>(), args.accumulate, stream());
    }
    blas_.matmul(args);
}

unsigned* CudaOps::arrivals(size_t count) {
    if (arrivals_.bytes() < count * sizeof(unsigned)) {
        device_.synchronize();  // earlier operations may still use the counters
        arrivals_ = {};
        arrivals_ = Buffer(device_, count * sizeof(unsigned));
        check_cuda(cudaMemsetAsync(arrivals_.data(), 0, arrivals_.bytes(), stream()), "cudaMemsetAsync");
    }
    return static_cast<unsigned*>(arrivals_.data());
}

void* CudaOps::scratch(size_t bytes) {
    if (scratch_.bytes() < bytes) {
        device_.synchronize();  // earlier operations may still use it
        scratch_ = {};
        scratch_ = Buffer(device_, bytes);
    }
    return scratch_.data();
}

template <class T>
T const* CudaOps::on_device(Table<T>& table, std::span<T const> values) {
    if (!std::ranges::equal(values, table.values)) {
        if (table.memory.bytes() < values.size_bytes()) {
            device_.synchronize();
            table.memory = {};
            table.memory = Buffer(device_, std::max<size_t>(2 * values.size_bytes(), 4096));
        }
        staging_.upload(table.memory.data(), values.data(), values.size_bytes());
        table.values.assign(values.begin(), values.end());
    }
    return static_cast<T const*>(table.memory.data());
}

int32_t const* CudaOps::borders(std::span<int32_t const> cu_seqlens) { return on_device(borders_, cu_seqlens); }

double const* CudaOps::frequencies(std::span<double const> values) { return on_device(frequencies_, values); }

std::unique_ptr<Ops> make_cuda_ops(Device& cuda, CudaOptions const& options) {
    auto* const device = dynamic_cast<CudaDevice*>(&cuda);
    PERIGEE_CHECK(device != nullptr, "operations of a GPU on {}", cuda.name());
    return std::make_unique<CudaOps>(*device, options);
}

}  // namespace perigee
