#include "model/classifier.h"

#include <algorithm>
#include <cmath>
#include <limits>
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

struct Wanted {
    ConstView targets_T;
    ConstView weights_T;
    int64_t vocab_begin = 0;
    double scale = 1;
    bool backward = false;  ///< the logits become their gradient
};

/// From a chunk's logits to its nll.
void cross_entropy(Ops& ops, Comm& tp, Chunk const& chunk, Wanted const& wanted) {
    ops.softmax_stats({.max_T = chunk.max_T,
                       .sum_T = chunk.sum_T(),
                       .target_T = chunk.target_T(),
                       .logits_TV = chunk.logits_TV,
                       .targets_T = wanted.targets_T,
                       .vocab_begin = wanted.vocab_begin});
    join_vocabulary(ops, tp, chunk);
    ops.cross_entropy({.nll_T = chunk.nll_T,
                       .dlogits_TV = wanted.backward ? chunk.logits_TV : TensorView(),
                       .logits_TV = chunk.logits_TV,
                       .targets_T = wanted.targets_T,
                       .weights_T = wanted.weights_T,
                       .max_T = chunk.all_max_T,
                       .sum_T = chunk.sum_T(),
                       .target_T = chunk.target_T(),
                       .scale = wanted.scale,
                       .vocab_begin = wanted.vocab_begin});
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

bool has_loss(std::span<float const> weights) {
    return std::ranges::any_of(weights, [](float w) { return w != 0; });
}

}  // namespace

std::vector<bool> chunks_with_loss(Ops& ops, std::span<float const> weights_T, int64_t vocab) {
    auto const tokens = std::ssize(weights_T), size = chunk_rows(ops, tokens, vocab);
    std::vector<bool> chunks;
    for (int64_t begin = 0; begin < tokens; begin += size)
        chunks.push_back(has_loss(
            weights_T.subspan(static_cast<size_t>(begin), static_cast<size_t>(std::min(size, tokens - begin)))));
    return chunks;
}

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
        if (!has_loss(weights)) {
            if (backward) ops.fill_zero(result.dx_TD.rows(begin, end));
            continue;
        }
        Chunk const chunk = first_rows(memory, end - begin);
        ConstView const x = in.x_TD.rows(begin, end);
        ConstView const targets_T = in.targets_T.rows(begin, end), weights_T = in.weights_T.rows(begin, end);
        ops.matmul({.c = chunk.logits_TV, .a = x, .b = in.w_VD, .transpose_b = true});
        cross_entropy(ops, tp, chunk, {targets_T, weights_T, vocab_begin, result.scale, backward});
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

namespace {

/// The chosen rows one after the other: where they are neighbours, the very memory of x, else copied to `gathered_ND`.
ConstView gather_rows(Ops& ops, ConstView x_TD, std::span<int64_t const> rows, TensorView gathered_ND) {
    auto const count = std::ssize(rows);
    if (rows.back() - rows.front() + 1 == count) return x_TD.rows(rows.front(), rows.back() + 1);
    for (int64_t begin = 0, end = 0; begin < count; begin = end) {
        int64_t const first = rows[static_cast<size_t>(begin)];
        while (end < count && rows[static_cast<size_t>(end)] == first + end - begin) ++end;
        ops.copy(gathered_ND.rows(begin, end), x_TD.rows(first, first + end - begin));
    }
    return gathered_ND.rows(0, count);
}

/// The winner among the logits of one token, and its logit.
struct Best {
    double logit = -std::numeric_limits<double>::infinity();
    int32_t id = -1;
};

double as_double(bf16 x) { return to_float(x); }
double as_double(double x) { return x; }

template <class Real>
Best best_of(std::span<Real const> logits, int64_t first_id) {
    Best best;
    for (size_t i = 0; i < logits.size(); ++i) {
        double const logit = as_double(logits[i]);
        if (std::isnan(logit)) return {std::numeric_limits<double>::quiet_NaN(), -1};
        if (best.id < 0 || logit > best.logit) best = {logit, static_cast<int32_t>(first_id + static_cast<int64_t>(i))};
    }
    return best;
}

/// Of this rank's part of the vocabulary.
template <class Real>
std::vector<Best> local_best(Ops& ops, ConstView logits_NV, int64_t first_id, int64_t allowed) {
    auto const vocab = static_cast<size_t>(logits_NV[1]);
    auto const taking_part = static_cast<size_t>(std::clamp<int64_t>(allowed - first_id, 0, logits_NV[1]));
    std::vector<Best> best(static_cast<size_t>(logits_NV[0]));
    if (taking_part == 0) return best;
    std::vector<Real> const logits = on_host<Real>(ops, logits_NV);
    for (size_t row = 0; row < best.size(); ++row)
        best[row] = best_of(std::span(logits).subspan(row * vocab, taking_part), first_id);
    return best;
}

/// Of the whole vocabulary: ranks hold rising parts of it, so the first rank with the highest logit has the lowest id.
std::vector<int32_t> joined_best(std::vector<Best> const& mine, HostComm& tp) {
    auto const count = std::ssize(mine), all = count * tp.size();
    std::vector<double> logits(static_cast<size_t>(count)), all_logits(static_cast<size_t>(all));
    std::vector<int32_t> ids(static_cast<size_t>(count)), all_ids(static_cast<size_t>(all));
    for (size_t i = 0; i < mine.size(); ++i) logits[i] = mine[i].logit, ids[i] = mine[i].id;
    tp.all_gather(TensorView(all_logits.data(), {all}), TensorView(logits.data(), {count}));
    tp.all_gather(TensorView(all_ids.data(), {all}), TensorView(ids.data(), {count}));
    std::vector<int32_t> joined;
    for (size_t row = 0; row < mine.size(); ++row) {
        Best best;
        for (size_t i = row; i < all_ids.size(); i += mine.size()) {
            if (std::isnan(all_logits[i])) {
                best.id = -1;
                break;
            }
            if (all_ids[i] >= 0 && (best.id < 0 || all_logits[i] > best.logit)) best = {all_logits[i], all_ids[i]};
        }
        joined.push_back(best.id);
    }
    return joined;
}

template <class Real>
void append_host(Ops& ops, ConstView x_T, std::vector<double>& to) {
    for (Real const x : on_host<Real>(ops, x_T)) to.push_back(static_cast<double>(x));
}

std::vector<int32_t> best_ids(Ops& ops, Comm& tp, ConstView logits_NV, int64_t first_id, int64_t allowed) {
    DType const dtype = logits_NV.dtype;
    auto const of = [&](auto real) { return local_best<decltype(real)>(ops, logits_NV, first_id, allowed); };
    return joined_best(dtype == DType::bf16 ? of(bf16{}) : dtype == DType::f64 ? of(double{}) : of(float{}), tp.host());
}

}  // namespace

TokenScores classifier_scores(Ops& ops, Comm& tp, Arena& arena, ScoredRows const& in) {
    Arena::Scope const scope(arena);
    int64_t const rows = std::ssize(in.rows), vocab = in.w_VD[0], vocab_begin = tp.rank() * vocab;
    TokenScores scores;
    if (rows == 0) return scores;
    int64_t const size = chunk_rows(ops, rows, vocab);
    Chunk const memory = allocate_chunk(ops, tp, arena, size, vocab);
    TensorView const gathered_ND = arena.allocate("scored rows", in.x_TD.dtype, {size, in.x_TD[1]});
    TensorView const targets_T = arena.allocate("scored targets", DType::i32, {size});
    TensorView const ones_T = arena.allocate("ones", DType::f32, {size});
    std::vector<float> const ones(static_cast<size_t>(size), 1.0f);
    ops.upload(ones_T, ones.data());
    for (int64_t begin = 0; begin < rows; begin += size) {
        int64_t const count = std::min(size, rows - begin);
        auto const part = [&](auto all) { return all.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)); };
        Chunk const chunk = first_rows(memory, count);
        ops.upload(targets_T.rows(0, count), part(in.targets).data());
        ops.matmul({.c = chunk.logits_TV,
                    .a = gather_rows(ops, in.x_TD, part(in.rows), gathered_ND),
                    .b = in.w_VD,
                    .transpose_b = true});
        cross_entropy(ops, tp, chunk, {targets_T.rows(0, count), ones_T.rows(0, count), vocab_begin});
        if (chunk.nll_T.dtype == DType::f64)
            append_host<double>(ops, chunk.nll_T, scores.nll);
        else
            append_host<float>(ops, chunk.nll_T, scores.nll);
        if (in.allowed > 0)
            std::ranges::copy(best_ids(ops, tp, chunk.logits_TV, vocab_begin, in.allowed),
                              std::back_inserter(scores.best));
    }
    return scores;
}

}  // namespace perigee
