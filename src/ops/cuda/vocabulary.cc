// Both ends of the model: embedding and loss.
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/embedding/embedding.h"
#include "ops/checks.h"
#include "ops/cuda/arguments.h"
#include "ops/cuda/cuda_ops.h"

namespace perigee {

void CudaOps::compute(EmbeddingForward const& args) {
    check(args);
    auto const [x_TD, ids_T, table_VD, vocab_begin] = args;
    kernels::embedding_forward({.x = x_TD.as<bf16>(),
                                .ids = ids_T.as<int32_t>(),
                                .table = table_VD.as<bf16>(),
                                .tokens = ids_T.size(),
                                .vocab = table_VD[0],
                                .width = table_VD[1],
                                .vocab_begin = vocab_begin},
                               stream());
}

void CudaOps::compute(EmbeddingBackward const& args) {
    check(args);
    auto const [dtable_accumulated_VD, ids_T, dx_TD, vocab_begin] = args;
    int64_t const tokens = ids_T.size(), vocab = dtable_accumulated_VD[0], width = dtable_accumulated_VD[1];
    kernels::embedding_backward({.dtable_accumulated = dtable_accumulated_VD.as<float>(),
                                 .ids = ids_T.as<int32_t>(),
                                 .dx = dx_TD.as<bf16>(),
                                 .tokens = tokens,
                                 .vocab = vocab,
                                 .width = width,
                                 .vocab_begin = vocab_begin,
                                 .scratch = scratch(kernels::embedding_backward_scratch(tokens, width))},
                                stream());
}

void CudaOps::compute(SoftmaxStats const& args) {
    check(args);
    kernels::softmax_stats({.max = args.max_T.as<float>(),
                            .sum = args.sum_T.as<float>(),
                            .target = args.target_T.as<float>(),
                            .logits = args.logits_TV.as<bf16>(),
                            .targets = args.targets_T.as<int32_t>(),
                            .tokens = args.logits_TV[0],
                            .vocab = args.logits_TV[1],
                            .vocab_begin = args.vocab_begin},
                           stream());
}

void CudaOps::compute(SoftmaxRescale const& args) {
    check(args);
    auto const [sum_T, max_T, global_max_T] = args;
    kernels::softmax_rescale({.sum = sum_T.as<float>(),
                              .max = max_T.as<float>(),
                              .global_max = global_max_T.as<float>(),
                              .tokens = sum_T.size()},
                             stream());
}

void CudaOps::compute(CrossEntropy const& args) {
    check(args);
    kernels::cross_entropy({.nll = args.nll_T.as<float>(),
                            .dlogits = optional<bf16>(args.dlogits_TV),
                            .logits = args.logits_TV.as<bf16>(),
                            .targets = args.targets_T.as<int32_t>(),
                            .weights = args.weights_T.as<float>(),
                            .max = args.max_T.as<float>(),
                            .sum = args.sum_T.as<float>(),
                            .target = args.target_T.as<float>(),
                            .tokens = args.logits_TV[0],
                            .vocab = args.logits_TV[1],
                            .vocab_begin = args.vocab_begin,
                            .scale = args.scale},
                           stream());
}

}  // namespace perigee
