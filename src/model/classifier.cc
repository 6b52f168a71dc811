#include "model/classifier.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace perigee {

namespace {

/// Rows of logits per chunk. CPU: what its caches hold. GPU: enough for efficient products; the product for dW reads
/// and writes all of dW in every chunk.
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
        if (!result.dw_accumulated_VD.empty())
            ops.matmul({.c = result.dw_accumulated_VD,
                        .a = chunk.logits_TV,
                        .b = x,
                        .transpose_a = true,
                        .accumulate = !fresh});
        fresh = false;
        ops.matmul({.c = result.dx_TD.rows(begin, end), .a = chunk.logits_TV, .b = in.w_VD});
    }
    if (backward && fresh && !result.dw_accumulated_VD.empty()) ops.fill_zero(result.dw_accumulated_VD);
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

constexpr Best kNotANumber{std::numeric_limits<double>::quiet_NaN(), -1};

/// Likelier, or as likely and of lower id; what is no candidate comes last.
bool goes_before(Best const& a, Best const& b) {
    if (a.id < 0 || b.id < 0) return a.id >= 0;
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

/// The first `best.size()` of these, in order; places without one stay empty.
template <class Real>
void find_best(std::span<Real const> logits, int64_t first_id, std::span<Best> best) {
    for (size_t i = 0; i < logits.size(); ++i) {
        Best candidate{as_double(logits[i]), static_cast<int32_t>(first_id + static_cast<int64_t>(i))};
        if (std::isnan(candidate.logit)) {
            std::ranges::fill(best, kNotANumber);
            return;
        }
        if (!goes_before(candidate, best.back())) continue;
        for (Best& place : best)
            if (goes_before(candidate, place)) std::swap(candidate, place);
    }
}

/// Of this rank's part of the vocabulary, `count` per row.
template <class Real>
std::vector<Best> local_best(Ops& ops, ConstView logits_NV, int64_t first_id, int64_t allowed, size_t count) {
    auto const vocab = static_cast<size_t>(logits_NV[1]), rows = static_cast<size_t>(logits_NV[0]);
    auto const taking_part = static_cast<size_t>(std::clamp<int64_t>(allowed - first_id, 0, logits_NV[1]));
    std::vector<Best> best(rows * count);
    if (taking_part == 0) return best;
    std::vector<Real> const logits = on_host<Real>(ops, logits_NV);
    for (size_t row = 0; row < rows; ++row)
        find_best(std::span(logits).subspan(row * vocab, taking_part), first_id,
                  std::span(best).subspan(row * count, count));
    return best;
}

/// Of the whole vocabulary, `count` per row, from each rank's.
std::vector<Best> joined_best(std::vector<Best> const& mine, size_t count, HostComm& tp) {
    auto const size = std::ssize(mine), all = size * tp.size();
    std::vector<double> logits(static_cast<size_t>(size)), all_logits(static_cast<size_t>(all));
    std::vector<int32_t> ids(static_cast<size_t>(size)), all_ids(static_cast<size_t>(all));
    for (size_t i = 0; i < mine.size(); ++i) logits[i] = mine[i].logit, ids[i] = mine[i].id;
    tp.all_gather(TensorView(all_logits.data(), {all}), TensorView(logits.data(), {size}));
    tp.all_gather(TensorView(all_ids.data(), {all}), TensorView(ids.data(), {size}));
    std::vector<Best> joined;
    for (size_t row = 0; row < mine.size(); row += count) {
        std::vector<Best> candidates;
        for (size_t begin = row; begin < all_ids.size(); begin += mine.size())
            for (size_t i = begin; i < begin + count; ++i) candidates.push_back({all_logits[i], all_ids[i]});
        bool const broken = std::ranges::any_of(candidates, [](Best const& b) { return std::isnan(b.logit); });
        if (broken) std::ranges::fill(candidates, kNotANumber);
        std::ranges::stable_sort(candidates, goes_before);
        joined.insert(joined.end(), candidates.begin(), candidates.begin() + static_cast<int64_t>(count));
    }
    return joined;
}

template <class Real>
void append_host(Ops& ops, ConstView x_T, std::vector<double>& to) {
    for (Real const x : on_host<Real>(ops, x_T)) to.push_back(static_cast<double>(x));
}

std::vector<Best> best_ids(Ops& ops, Comm& tp, ConstView logits_NV, int64_t first_id, int64_t allowed, size_t count) {
    DType const dtype = logits_NV.dtype;
    auto const of = [&](auto real) { return local_best<decltype(real)>(ops, logits_NV, first_id, allowed, count); };
    return joined_best(dtype == DType::bf16  ? of(bf16{})
                       : dtype == DType::f64 ? of(double{})
                                             : of(float{}),
                       count, tp.host());
}

/// Adds the likeliest ids of a chunk's rows to `scores`, which has their nll.
void add_best(Ops& ops, Comm& tp, Chunk const& chunk, ScoredRows const& in, TokenScores& scores) {
    auto const top = static_cast<size_t>(in.top), count = std::max<size_t>(top, 1);
    auto const best = best_ids(ops, tp, chunk.logits_TV, tp.rank() * chunk.logits_TV[1], in.allowed, count);
    std::vector<double> targets;
    chunk.nll_T.dtype == DType::f64 ? append_host<double>(ops, chunk.target_T(), targets)
                                    : append_host<float>(ops, chunk.target_T(), targets);
    size_t const first = scores.nll.size() - targets.size();
    for (size_t row = 0; row < targets.size(); ++row) {
        scores.best.push_back(best[row * count].id);
        for (size_t i = row * count; i < row * count + top; ++i) {
            scores.top_ids.push_back(best[i].id);
            scores.top_logprobs.push_back(best[i].logit - targets[row] - scores.nll[first + row]);
        }
    }
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
        if (in.allowed > 0) add_best(ops, tp, chunk, in, scores);
    }
    return scores;
}

}  // namespace perigee
