// Selection of blocks and block-sparse attention on the GPU. Full attention runs by the same kernels where
// attention_backend() finds no others for it.
#include "kernels/block_selection/select_by_position.h"
#include "kernels/block_sparse_attention/block_sparse_attention.h"
#include "kernels/moba_gate/gate.h"
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/gpu_attention.h"

namespace perigee {
namespace {

template <class Args>
BlockSparseProblem problem_of(Args const& args, int32_t const* cu_seqlens, cudaStream_t stream) {
    BlockSparseProblem problem{.query_begin = args.query_begin,
                               .cu_seqlens = cu_seqlens,
                               .scale = args.scale,
                               .q = args.q_THK.template as<bf16>(),
                               .k = args.k_TGK.template as<bf16>(),
                               .v = args.v_TGK.template as<bf16>(),
                               .stream = stream};
    if (auto const* const sparse = std::get_if<BlockSparse>(&args.attended); sparse && sparse->budget.slots() > 0)
        problem.chosen = sparse->chosen_THS.template as<int32_t>();
    return problem;
}

/// The backward only reads it.
void* checked_routing(BlockSparsePlan const& plan, TensorView routing_L) {
    PERIGEE_CHECK(static_cast<size_t>(routing_L.bytes()) >= plan.routing.bytes, "{} for the routing of {}",
                  routing_L.shape.str(), to_string(plan.shape));
    return routing_L.as<int32_t>();
}

}  // namespace

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
    MobaGatePlan const& plan = plans_.of(args);
    moba_gate_select(plan,
                     {.query_begin = args.query_begin,
                      .cu_seqlens = borders(args.cu_seqlens),
                      .q = args.q_THK.as<bf16>(),
                      .k = args.k_TGK.as<bf16>(),
                      .scratch = scratch(plan.scratch_bytes),
                      .stream = stream()},
                     args.chosen_THS.as<int32_t>());
}

void CudaOps::block_attention_forward(AttentionForward const& args) {
    BlockSparsePlan const& plan = plans_.of(args);
    BlockSparseProblem problem = problem_of(args, borders(args.cu_seqlens), stream());
    if (TensorView const routing = routing_of(args); !routing.empty()) problem.routing = checked_routing(plan, routing);
    problem.scratch = scratch(plan.bytes_beside(problem.routing != nullptr));
    block_sparse_forward(plan, problem, args.o_THK.as<bf16>(), args.lse_TH.as<float>());
}

void CudaOps::block_attention_backward(AttentionBackward const& args) {
    BlockSparsePlan const& plan = plans_.of(args);
    BlockSparseProblem problem = problem_of(args, borders(args.cu_seqlens), stream());
    if (forward_left_routing(args, plans_.arch())) problem.routing = checked_routing(plan, routing_of(args));
    problem.scratch = scratch(plan.bytes_beside(problem.routing != nullptr));
    block_sparse_backward(plan, problem,
                          {.d_o = args.do_THK.as<bf16>(),
                           .o = args.o_THK.as<bf16>(),
                           .lse = args.lse_TH.as<float>(),
                           .dq = args.dq_THK.as<bf16>(),
                           .dk = args.dk_TGK.as<bf16>(),
                           .dv = args.dv_TGK.as<bf16>(),
                           .add_to_dkv = args.add_to_dkv});
}

}  // namespace perigee
