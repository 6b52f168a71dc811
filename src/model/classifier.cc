#include "model/classifier.h"

#include <algorithm>
#include <span>

namespace perigee {

namespace {

/// Rows of logits that exist at once: on the CPU what stays in its caches, on a GPU enough for efficient products, of
/// which the one for dW reads and writes the whole gradient of W for every chunk.
int64_t chunk_rows(Ops& ops, int64_t tokens, int64_t vocab) {
    constexpr int64_t kMultiple = 128;
    int64_t const bytes = ops.device().is_host() ? int64_t{32} << 20 : int64_t{1} << 30;
    int64_t const rows = bytes / (vocab * size_of(ops.compute_dtype())) / kMultiple * kMultiple;
    return std::min(tokens, std::max(kMultiple, rows));
}

/// Device memory for one chunk.
struct Chunk {
    TensorView logits_TV;
    TensorView max_T;           ///< over this rank's vocabulary
    TensorView all_max_T = {};  ///< over the whole one; the same memory where tp has one rank
    TensorView sums_2T;         ///< softmax sums, then target logits: one message
    TensorView nll_T;

    TensorView sum_T() const { return sums_2T.rows(0, nll_T[0]); }
    TensorView target_T() const { return sums_2T.rows(nll_T[0], 2 * nll_T[0]); }
};

Chunk allocate_chunk(Ops const& ops, Comm const& tp, Arena& arena, int64_t rows, int64_t vocab) {
    DType const statistics = ops.main_dtype();
    Chunk chunk{.logits_TV = arena.allocate("logits", ops.compute_dtype(), {rows, vocab}, Use::logits),
                .max_T = arena.allocate("softmax max", statistics, {rows}),
                .sums_2T = arena.allocate("softmax sums", statistics, {2 * rows}),
                .nll_T = arena.allocate("nll", statistics, {rows})};
    chunk.all_max_T = tp.size() == 1 ? chunk.max_T : arena.allocate("softmax max of all", statistics, {rows});
    return chunk;
}

Chunk first_rows(Chunk const& chunk, int64_t rows) {
    return {.logits_TV = chunk.logits_TV.rows(0, rows),
            .max_T = chunk.max_T.rows(0, rows),
            .all_max_T = chunk.all_max_T.rows(0, rows),
            .sums_2T = chunk.sums_2T.rows(0, 2 * rows),
            .nll_T = chunk.nll_T.rows(0, rows)};
}

/// From the statistics of each rank's vocabulary to those of the whole one.
void join_vocabulary(Ops& ops, Comm& tp, Chunk const& chunk) {
    if (tp.size() == 1) return;
    ops.copy(chunk.all_max_T, chunk.max_T);
    Queue& queue = ops.device().queue();
    tp.all_reduce(queue, chunk.all_max_T, Reduce::max);
    ops.softmax_rescale({chunk.sum_T(), chunk.max_T, chunk.all_max_T});
    tp.all_reduce(queue, chunk.sums_2T);
}

template <class Real>
std::vector<Real> on_host(Ops& ops, ConstView x_T) {
    std::vector<Real> values(static_cast<size_t>(x_T.size()));
    ops.download(values.data(), x_T);
    return values;
}

template <class Real>
double correct_weight(Ops& ops, Chunk const& chunk, std::span<float const> weights) {
    auto const best = on_host<Real>(ops, chunk.all_max_T), target = on_host<Real>(ops, chunk.target_T());
    double sum = 0;
    for (size_t t = 0; t < weights.size(); ++t)
        if (target[t] >= best[t]) sum += static_cast<double>(weights[t]);
    return sum;
}

}  // namespace

void classifier_loss(Ops& ops, Comm& tp, Arena& arena, ClassifierInputs const& in, ClassifierResult const& result) {
    Arena::Scope const scope(arena);
    int64_t const tokens = in.x_TD[0], vocab = in.w_VD[0], vocab_begin = tp.rank() * vocab;
    int64_t const size = chunk_rows(ops, tokens, vocab);
    bool const backward = !result.dx_TD.empty();
    Chunk const memory = allocate_chunk(ops, tp, arena, size, vocab);
    bool fresh = result.fresh;
    for (int64_t begin = 0; begin < tokens; begin += size) {
        int64_t const end = std::min(tokens, begin + size);
        std::span const weights =
            in.host_weights_T.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
        if (std::ranges::all_of(weights, [](float w) { return w == 0; })) {
            if (backward) ops.fill_zero(result.dx_TD.rows(begin, end));
            continue;
        }
        Chunk const chunk = first_rows(memory, end - begin);
        ConstView const x = in.x_TD.rows(begin, end);
        ConstView const targets_T = in.targets_T.rows(begin, end), weights_T = in.weights_T.rows(begin, end);
        ops.matmul({.c = chunk.logits_TV, .a = x, .b = in.w_VD, .transpose_b = true});
        ops.softmax_stats({.max_T = chunk.max_T,
                           .sum_T = chunk.sum_T(),
                           .target_T = chunk.target_T(),
                           .logits_TV = chunk.logits_TV,
                           .targets_T = targets_T,
                           .vocab_begin = vocab_begin});
        join_vocabulary(ops, tp, chunk);
        ops.cross_entropy({.nll_T = chunk.nll_T,
                           .dlogits_TV = backward ? chunk.logits_TV : TensorView(),
                           .logits_TV = chunk.logits_TV,
                           .targets_T = targets_T,
                           .weights_T = weights_T,
                           .max_T = chunk.all_max_T,
                           .sum_T = chunk.sum_T(),
                           .target_T = chunk.target_T(),
                           .scale = result.scale,
                           .vocab_begin = vocab_begin});
        ops.weighted_sum({result.loss_accumulated, chunk.nll_T, weights_T});
        if (result.correct_accumulated != nullptr)
            *result.correct_accumulated += chunk.nll_T.dtype == DType::f64 ? correct_weight<double>(ops, chunk, weights)
                                                                           : correct_weight<float>(ops, chunk, weights);
        if (!backward) continue;
        ops.matmul(
            {.c = result.dw_accumulated_VD, .a = chunk.logits_TV, .b = x, .transpose_a = true, .accumulate = !fresh});
        fresh = false;
        ops.matmul({.c = result.dx_TD.rows(begin, end), .a = chunk.logits_TV, .b = in.w_VD});
    }
    if (backward && fresh) ops.fill_zero(result.dw_accumulated_VD);
}

}  // namespace perigee
