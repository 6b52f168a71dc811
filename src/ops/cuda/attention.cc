// Which kernels compute an attention: gpu_attention.h says so.
#include "kernels/dense_attention/dense_attention.h"
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/dense_attention.h"
#include "ops/gpu_attention.h"

namespace perigee {
namespace {

DenseAttentionProblem problem_of(auto const& args, bool deterministic, int32_t const* cu_seqlens, cudaStream_t stream) {
    return {.shape = dense_shape(args.q_THK.shape, args.k_TGK.shape, args.cu_seqlens, deterministic),
            .queries = args.q_THK[0],
            .scale = args.scale,
            .cu_seqlens = cu_seqlens,
            .q = args.q_THK.template as<bf16>(),
            .k = args.k_TGK.template as<bf16>(),
            .v = args.v_TGK.template as<bf16>(),
            .stream = stream};
}

}  // namespace

void CudaOps::compute(AttentionForward const& args) {
    check(args);
    switch (attention_backend(args, plans_.arch())) {
        case AttentionBackend::dense: {
            auto problem = problem_of(args, options_.deterministic, borders(args.cu_seqlens), stream());
            problem.scratch = scratch(dense_forward_scratch(problem.shape));
            dense_attention_forward(problem, args.o_THK.as<bf16>(), args.lse_TH.as<float>());
            break;
        }
        case AttentionBackend::cudnn:
            dense_->forward(args);
            break;
        case AttentionBackend::block_sparse:
            block_attention_forward(args);
    }
}

void CudaOps::compute(AttentionBackward const& args) {
    check(args);
    switch (attention_backend(args, plans_.arch(), options_.deterministic)) {
        case AttentionBackend::dense: {
            auto problem = problem_of(args, options_.deterministic, borders(args.cu_seqlens), stream());
            problem.scratch = scratch(dense_backward_scratch(problem.shape));
            dense_attention_backward(problem, {.d_o = args.do_THK.as<bf16>(),
                                               .o = args.o_THK.as<bf16>(),
                                               .lse = args.lse_TH.as<float>(),
                                               .dq = args.dq_THK.as<bf16>(),
                                               .dk = args.dk_TGK.as<bf16>(),
                                               .dv = args.dv_TGK.as<bf16>()});
            break;
        }
        case AttentionBackend::cudnn:
            dense_->backward(args);
            break;
        case AttentionBackend::block_sparse:
            block_attention_backward(args);
    }
}

}  // namespace perigee
