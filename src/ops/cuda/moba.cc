// MoBA's operations on the GPU, and full attention by the same kernels where cuDNN does not serve.
#include "kernels/block_selection/select_by_position.h"
#include "kernels/moba/cuda/moba_cuda.h"
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/gpu_attention.h"

namespace perigee {
namespace {

template <class Args>
MobaProblem problem_of(Args const& args, int32_t const* borders, cudaStream_t stream) {
    return {.shape = moba_shape(args, moba_cuda_kernels()),
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
    if (auto const* const sparse = std::get_if<BlockSparse>(&args.attended); sparse && sparse->budget.slots() > 0)
        problem.chosen = sparse->chosen_THS.template as<int32_t>();
    return problem;
}

/// The backward reads them, but for one of no queries, which had no forward to write them.
void give_routing(MobaProblem& problem, TensorView routing_L) {
    PERIGEE_CHECK(static_cast<size_t>(routing_L.bytes()) >= moba_lists_bytes(problem.shape), "{} of routing for {}",
                  routing_L.shape.str(), to_string(problem.shape));
    problem.lists = routing_L.as<int32_t>();
}

}  // namespace

void CudaOps::give_scratch(MobaProblem& problem, MobaTask task) {
    problem.shape.deterministic = options_.deterministic;
    problem.scratch_limit = options_.moba_scratch;
    MobaPlan const plan = plan_moba(problem.shape, task, problem.scratch_limit);
    problem.scratch = scratch(plan.bytes_beside(problem.lists != nullptr));
}

int64_t CudaOps::routing_size(Shape const& q_THK, Shape const& k_TGK, std::span<int32_t const> cu_seqlens,
                              BlockBudget const& budget) const {
    return gpu_routing_size(q_THK, k_TGK, cu_seqlens, budget);
}

void CudaOps::compute(SelectBlocks const& args) {
    check(args);
    if (args.chosen_THS.size() == 0) return;
    if (kernels::select_by_position({.chosen = args.chosen_THS.as<int32_t>(),
                                     .cu_seqlens = borders(args.cu_seqlens),
                                     .documents = std::ssize(args.cu_seqlens) - 1,
                                     .query_begin = args.query_begin,
                                     .rows = args.q_THK[0],
                                     .heads = args.q_THK[1],
                                     .first_head = args.first_head},
                                    args.selection, stream()))
        return;
    MobaProblem problem = problem_of(args, borders(args.cu_seqlens), stream());
    give_scratch(problem, MobaTask::select);
    moba_cuda_select(problem, args.chosen_THS.as<int32_t>());
}

void CudaOps::block_attention_forward(AttentionForward const& args) {
    MobaProblem problem = attention_of(args, borders(args.cu_seqlens), stream());
    if (TensorView const routing = routing_of(args); !routing.empty()) give_routing(problem, routing);
    give_scratch(problem, MobaTask::forward);
    moba_cuda_forward(problem, args.o_THK.as<bf16>(), args.lse_TH.as<float>());
}

void CudaOps::block_attention_backward(AttentionBackward const& args) {
    MobaProblem problem = attention_of(args, borders(args.cu_seqlens), stream());
    if (forward_left_routing(args)) give_routing(problem, routing_of(args));
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
