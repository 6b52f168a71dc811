// Operations on flat ranges of parameters, gradients and activations.
#include "kernels/flat/flat.h"
#include "kernels/adamw/adamw.h"
#include "ops/checks.h"
#include "ops/cuda/arguments.h"
#include "ops/cuda/cuda_ops.h"

namespace perigee {

void CudaOps::compute(Copy const& args) {
    auto const [to, from] = args;
    PERIGEE_CHECK(to.size() == from.size(), "copy of {} {} to {} {}", to_string(from.dtype), from.shape.str(),
                  to_string(to.dtype), to.shape.str());
    if (to.dtype == from.dtype) {
        check_cuda(
            cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(to.bytes()), cudaMemcpyDeviceToDevice, stream()),
            "cudaMemcpyAsync");
    } else if (to.dtype == DType::bf16) {
        kernels::cast(to.as<bf16>(), from.as<float>(), to.size(), stream());
    } else {
        kernels::cast(to.as<float>(), from.as<bf16>(), to.size(), stream());
    }
}

void CudaOps::compute(CopyRows const& args) {
    check(args);
    int64_t const element = size_of(args.to.dtype);
    kernels::copy_rows({.to = args.to.data + args.to_begin * element,
                        .to_stride = args.to_stride * element,
                        .from = args.from.data + args.from_begin * element,
                        .from_stride = args.from_stride * element,
                        .rows = args.rows,
                        .width = args.width * element},
                       stream());
}

void CudaOps::compute(FillNormal const& args) {
    kernels::FillNormal const numbers{
        .random = args.random, .stddev = args.stddev, .part = args.part, .count = args.x.size()};
    if (args.x.dtype == DType::bf16)
        kernels::fill_normal(args.x.as<bf16>(), numbers, stream());
    else
        kernels::fill_normal(args.x.as<float>(), numbers, stream());
}

void CudaOps::compute(StochasticRounding const& args) {
    check(args);
    kernels::round_stochastically({.to = args.to.as<bf16>(),
                                   .from = args.from.as<float>(),
                                   .random = args.random,
                                   .part = args.part,
                                   .count = args.to.size()},
                                  stream());
}

void CudaOps::compute(Add const& args) {
    check(args);
    auto const [accumulated, x] = args;
    if (x.dtype == DType::bf16)
        kernels::add(accumulated.as<bf16>(), x.as<bf16>(), x.size(), stream());
    else
        kernels::add(accumulated.as<float>(), x.as<float>(), x.size(), stream());
}

void CudaOps::compute(Scale const& args) {
    auto const [x, factor] = args;
    if (x.dtype == DType::bf16)
        kernels::scale(x.as<bf16>(), static_cast<float>(factor), x.size(), stream());
    else
        kernels::scale(x.as<float>(), static_cast<float>(factor), x.size(), stream());
}

void CudaOps::compute(Dropout const& args) {
    check(args);
    uint32_t const threshold = dropout_threshold(args.rate);
    kernels::dropout({.y = args.y.as<bf16>(),
                      .x = args.x.as<bf16>(),
                      .threshold = threshold,
                      .factor = static_cast<float>(65536.0 / (65536.0 - threshold)),
                      .random = args.random,
                      .part = args.part,
                      .count = args.x.size()},
                     stream());
}

void CudaOps::compute(SquaredNorm const& args) {
    auto const [sum_accumulated, x] = args;
    auto* const sum = sum_accumulated.as<double>();
    void* const partials = scratch(kernels::sum_scratch());
    if (x.dtype == DType::bf16)
        kernels::squared_norm(sum, x.as<bf16>(), x.size(), partials, stream());
    else
        kernels::squared_norm(sum, x.as<float>(), x.size(), partials, stream());
}

void CudaOps::compute(HashBits const& args) {
    check(args);
    auto* const hash = reinterpret_cast<uint64_t*>(args.hash_accumulated.as<int64_t>());
    if (args.x.dtype == DType::bf16)
        kernels::hash_bits(hash, args.x.as<bf16>(), args.x.size(), stream());
    else
        kernels::hash_bits(hash, args.x.as<float>(), args.x.size(), stream());
}

void CudaOps::compute(WeightedSum const& args) {
    check(args);
    auto const [sum_accumulated, values_T, weights_T] = args;
    kernels::weighted_sum(sum_accumulated.as<double>(), values_T.as<float>(), weights_T.as<float>(), values_T.size(),
                          scratch(kernels::sum_scratch()), stream());
}

void CudaOps::compute(AdamW const& args) {
    check(args);
    bool const narrow = args.m.dtype == DType::bf16;
    kernels::adamw({.w = args.w.as<float>(),
                    .m = narrow ? nullptr : args.m.as<float>(),
                    .v = narrow ? nullptr : args.v.as<float>(),
                    .narrow_m = narrow ? args.m.as<bf16>() : nullptr,
                    .narrow_v = narrow ? args.v.as<bf16>() : nullptr,
                    .g = args.g.as<float>(),
                    .rounded = optional<bf16>(args.rounded),
                    .count = args.w.size(),
                    .lr = args.lr,
                    .beta1 = args.beta1,
                    .beta2 = args.beta2,
                    .eps = args.eps,
                    .weight_decay = args.weight_decay,
                    .grad_scale = args.grad_scale,
                    .step = args.step,
                    .random = args.random,
                    .part = args.part},
                   stream());
}

}  // namespace perigee
