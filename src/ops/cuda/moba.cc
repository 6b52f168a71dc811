// MoBA's operations on the GPU, and full attention by the same kernels where cuDNN does not serve.
#include "kernels/moba/cuda/moba_cuda.h"
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/gpu_attention.h"

namespace perigee {
namespace {

template <class Args>
MobaProblem problem_of(Args const& args, int32_t const* borders, cudaStream_t stream) {
    return {.shape = moba_shape(args.q_THK, args.k_TGK, args.cu_seqlens, args.moba, moba_cuda_kernels()),
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

void CudaOps::give_scratch(MobaProblem& problem, MobaTask task) {
    problem.shape.deterministic = options_.deterministic;
    problem.scratch_limit = options_.moba_scratch;
    problem.scratch = scratch(plan_moba(problem.shape, task, problem.scratch_limit).scratch_bytes);
}

void CudaOps::moba_select(MobaSelect const& args) {
    check(args);
    if (args.chosen_THS.size() == 0) return;
    MobaProblem problem = problem_of(args, borders(args.cu_seqlens), stream());
    give_scratch(problem, MobaTask::select);
    moba_cuda_select(problem, args.chosen_THS.as<int32_t>());
}

void CudaOps::block_attention_forward(AttentionForward const& args) {
    MobaProblem problem = attention_of(args, borders(args.cu_seqlens), stream());
    give_scratch(problem, MobaTask::forward);
    moba_cuda_forward(problem, args.o_THK.as<bf16>(), args.lse_TH.as<float>());
}

void CudaOps::block_attention_backward(AttentionBackward const& args) {
    MobaProblem problem = attention_of(args, borders(args.cu_seqlens), stream());
    give_scratch(problem, MobaTask::backward);
    moba_cuda_backward(problem, {.d_o = args.do_THK.as<bf16>(),
                                 .o = args.o_THK.as<bf16>(),
                                 .lse = args.lse_TH.as<float>(),
                                 .dq = args.dq_THK.as<bf16>(),
                                 .dk = args.dk_TGK.as<bf16>(),
                                 .dv = args.dv_TGK.as<bf16>(),
                                 .add_to_dkv = args.add_to_dkv});
}

}  // namespace perigee
