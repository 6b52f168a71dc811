// The classifier and its loss, in chunks of tokens: the logits of the whole batch never exist at once. Each tp rank
// computes the logits of its own rows of the vocabulary; only three numbers per token cross between ranks.
#pragma once

#include <span>
#include <vector>

#include "comm/comm.h"
#include "ops/ops.h"
#include "tensor/arena.h"

namespace perigee {

/// Outputs. Gradient views are empty if only the loss is wanted; the view of dw is also empty if w is frozen.
struct ClassifierResult {
    TensorView loss_accumulated;  ///< f64 [1] on the device
    /// Unless null, also receives the summed weights of tokens whose target is the likeliest (or tied); this waits.
    double* correct_accumulated = nullptr;
    TensorView dx_TD = {};  ///< what this rank's rows contribute; may be the memory of x_TD
    TensorView dw_accumulated_VD = {};
    bool fresh = false;  ///< dw holds nothing yet: it is overwritten
    double scale = 1;
};

/// What enters the classifier, and what the tokens are to predict. All is on the device, the loss weights on the host
/// too.
struct ClassifierInputs {
    ConstView x_TD;       ///< all tokens
    ConstView w_VD;       ///< rank r's part r of the vocabulary
    ConstView targets_T;  ///< int32
    ConstView weights_T;  ///< f32
    std::span<float const> host_weights_T;
};

/// Adds the sum over the batch of weight * nll of softmax(x W^T), added in fp64; the same on every rank of `tp`. With
/// views for it, also the gradient of scale * that sum. Chunks whose weights are all zero cost nothing. Does not wait
/// for the device.
void classifier_loss(Ops& ops, Comm& tp, Arena& arena, ClassifierInputs const& in, ClassifierResult const& result);

/// Of chosen tokens, in their order.
struct TokenScores {
    std::vector<double> nll = {};  ///< of the target, in nats
    std::vector<int32_t> best =
        {};  ///< what greedy decoding takes: the likeliest id, the lowest of equally likely ones
    // Of each token the likeliest ids, in this order, and the logarithms of their probabilities: [tokens, top].
    std::vector<int32_t> top_ids = {};
    std::vector<double> top_logprobs = {};
};

/// Which tokens are to be scored, and what they are to predict.
struct ScoredRows {
    ConstView x_TD;                    ///< all tokens
    ConstView w_VD;                    ///< rank r's part r of the vocabulary
    std::span<int64_t const> rows;     ///< of x, rising
    std::span<int32_t const> targets;  ///< one per row
    /// Only ids below it compete for `best`, which costs a transfer of the logits; 0: `best` stays empty.
    int64_t allowed = 0;
    int64_t top = 0;  ///< so many of the likeliest ids of each row, at most `allowed`
};

/// Logits of the chosen rows only, in chunks. The same on every rank of `tp`. Waits for the device. `best` is -1 where
/// a logit that takes part is NaN.
TokenScores classifier_scores(Ops& ops, Comm& tp, Arena& arena, ScoredRows const& in);

/// Which chunks of a batch with these loss weights, and `vocab` rows of the classifier on this rank, are computed at
/// all.
std::vector<bool> chunks_with_loss(Ops& ops, std::span<float const> weights_T, int64_t vocab);

}  // namespace perigee
