#include "kernels/qkv/qkv.h"
#include "kernels/flat/flat.h"
#include "ops/checks.h"
#include "ops/cuda/arguments.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/gpu_limits.h"

namespace perigee {

namespace {

kernels::QkvShape shape_of(ConstView q_THK, ConstView k_TGK) {
    int64_t const size = q_THK[2];
    check_gpu_heads(size);
    return {.tokens = q_THK[0],
            .heads = static_cast<int>(q_THK[1]),
            .kv_heads = static_cast<int>(k_TGK[1]),
            .size = static_cast<int>(size)};
}

}  // namespace

void CudaOps::compute(RopeTable const& args) {
    check(args);
    auto const [cos_TR, sin_TR, positions_T, inverse_frequencies, magnitude] = args;
    kernels::rope_table({.cos = cos_TR.as<float>(),
                         .sin = sin_TR.as<float>(),
                         .positions = positions_T.as<int32_t>(),
                         .inverse_frequencies = frequencies(inverse_frequencies),
                         .tokens = positions_T.size(),
                         .frequencies = std::ssize(inverse_frequencies),
                         .magnitude = magnitude},
                        stream());
}

void CudaOps::compute(QkvForward const& args) {
    check(args);
    kernels::qkv_forward({.shape = shape_of(args.q_THK, args.k_TGK),
                          .q = args.q_THK.as<bf16>(),
                          .k = args.k_TGK.as<bf16>(),
                          .v = args.v_TGK.as<bf16>(),
                          .qkv = args.qkv_TX.as<bf16>(),
                          .cos = args.cos_TR.as<float>(),
                          .sin = args.sin_TR.as<float>(),
                          .bias = optional<bf16>(args.bias_X),
                          .q_norm = optional<bf16>(args.q_norm_K),
                          .k_norm = optional<bf16>(args.k_norm_K),
                          .eps = static_cast<float>(args.eps)},
                         stream());
}

void CudaOps::compute(QkvBackward const& args) {
    check(args);
    kernels::QkvShape const shape = shape_of(args.dq_THK, args.dk_TGK);
    bool const bias = !args.dbias_accumulated_X.empty(), norms = !args.q_norm_K.empty() || !args.k_norm_K.empty();
    kernels::qkv_backward({.shape = shape,
                           .dqkv = args.dqkv_TX.as<bf16>(),
                           .dq = args.dq_THK.as<bf16>(),
                           .dk = args.dk_TGK.as<bf16>(),
                           .dv = args.dv_TGK.as<bf16>(),
                           .qkv = optional<bf16>(args.qkv_TX),
                           .cos = args.cos_TR.as<float>(),
                           .sin = args.sin_TR.as<float>(),
                           .q_norm = optional<bf16>(args.q_norm_K),
                           .k_norm = optional<bf16>(args.k_norm_K),
                           .dbias_accumulated = optional<float>(args.dbias_accumulated_X),
                           .dq_norm_accumulated = optional<float>(args.dq_norm_accumulated_K),
                           .dk_norm_accumulated = optional<float>(args.dk_norm_accumulated_K),
                           .eps = static_cast<float>(args.eps),
                           .scratch = static_cast<float*>(scratch(kernels::qkv_backward_scratch(shape, bias, norms)))},
                          stream());
}

}  // namespace perigee
