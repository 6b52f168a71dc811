// MoBA's operations on the GPU, and full attention by the same kernels where cuDNN does not serve.
#include <algorithm>

#include "kernels/moba/cuda/moba_cuda.h"
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"

namespace perigee {
namespace {

/// Without `moba`, full attention: one block per document.
MobaShape shape_of(ConstView q_THK, ConstView k_TGK, std::span<int32_t const> cu_seqlens, MobaOptions const* moba) {
    MobaShape const shape{.tokens = k_TGK[0],
                          .queries = q_THK[0],
                          .documents = std::ssize(cu_seqlens) - 1,
                          .heads = q_THK[1],
                          .kv_heads = k_TGK[1],
                          .head_dim = q_THK[2],
                          .options = moba != nullptr ? *moba : MobaOptions{},
                          .gpu = moba_cuda_kernels()};
    if (moba != nullptr) return shape;
    int32_t longest = 0;
    for (size_t d = 0; d + 1 < cu_seqlens.size(); ++d) longest = std::max(longest, cu_seqlens[d + 1] - cu_seqlens[d]);
    return as_full_attention(shape, longest);
}

template <class Args>
MobaProblem problem_of(Args const& args, int32_t const* borders, cudaStream_t stream) {
    MobaShape const shape = shape_of(args.q_THK, args.k_TGK, args.cu_seqlens, args.moba);
    if (std::string const refusal = moba_refusal(shape); !refusal.empty())
        fail(Category::config, "attention on the GPU: {}", refusal);
    return {.shape = shape,
            .query_begin = args.query_begin,
            .cu_seqlens = borders,
            .q = args.q_THK.template as<bf16>(),
            .k = args.k_TGK.template as<bf16>(),
            .stream = stream};
}

template <class Args>
MobaProblem attention_of(Args const& args, int32_t const* borders, cudaStream_t stream) {
    MobaProblem problem = problem_of(args, borders, stream);
    problem.scale = args.scale;
    problem.v = args.v_TGK.template as<bf16>();
    if (problem.shape.slots() > 0) problem.chosen = args.chosen_THS.template as<int32_t>();
    return problem;
}

}  // namespace

void CudaOps::moba_select(MobaSelect const& args) {
    check(args);
    if (args.chosen_THS.size() == 0) return;
    MobaProblem problem = problem_of(args, borders(args.cu_seqlens), stream());
    problem.scratch = scratch(plan_moba(problem.shape, MobaTask::select).scratch_bytes);
    moba_cuda_select(problem, args.chosen_THS.as<int32_t>());
}

void CudaOps::block_attention_forward(AttentionForward const& args) {
    MobaProblem problem = attention_of(args, borders(args.cu_seqlens), stream());
    problem.scratch = scratch(plan_moba(problem.shape, MobaTask::forward).scratch_bytes);
    moba_cuda_forward(problem, args.o_THK.as<bf16>(), args.lse_TH.as<float>());
}

void CudaOps::block_attention_backward(AttentionBackward const& args) {
    MobaProblem problem = attention_of(args, borders(args.cu_seqlens), stream());
    problem.scratch = scratch(plan_moba(problem.shape, MobaTask::backward).scratch_bytes);
    moba_cuda_backward(problem, {.d_o = args.do_THK.as<bf16>(),
                                 .o = args.o_THK.as<bf16>(),
                                 .lse = args.lse_TH.as<float>(),
                                 .dq = args.dq_THK.as<bf16>(),
                                 .dk = args.dk_TGK.as<bf16>(),
                                 .dv = args.dv_TGK.as<bf16>(),
                                 .add_to_dkv = args.add_to_dkv});
}

}  // namespace perigee
