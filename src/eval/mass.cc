#include "eval/mass.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/error.h"

namespace perigee {

namespace {

int64_t document_begin(std::span<int32_t const> cu_seqlens, int64_t token) {
    return *std::prev(std::ranges::upper_bound(cu_seqlens, static_cast<int32_t>(token)));
}

/// Of the local block, the last one, and of those that are chosen; -1: none.
double mass_of(std::span<double const> masses, std::span<int32_t const> chosen) {
    double sum = masses.back();
    for (int32_t const block : chosen)
        if (block >= 0) sum += masses[static_cast<size_t>(block)];
    return sum;
}

double best_mass(std::span<double const> masses, int64_t slots) {
    std::vector<double> past(masses.begin(), masses.end() - 1);
    auto const some = std::min<int64_t>(slots, std::ssize(past));
    std::partial_sort(past.begin(), past.begin() + some, past.end(), std::greater());
    return std::accumulate(past.begin(), past.begin() + some, masses.back());
}

}  // namespace

std::vector<int64_t> choosing_queries(std::span<int32_t const> cu_seqlens, BlockBudget const& budget, int64_t count) {
    std::vector<int64_t> all;
    for (size_t i = 1; i < cu_seqlens.size(); ++i)
        for (int64_t t = cu_seqlens[i - 1] + budget.top_k * budget.block_size; t < cu_seqlens[i]; ++t) all.push_back(t);
    int64_t const some = std::min<int64_t>(count, std::ssize(all));
    std::vector<int64_t> queries;
    for (int64_t i = 0; i < some; ++i)
        queries.push_back(all[static_cast<size_t>((2 * i + 1) * std::ssize(all) / (2 * some))]);
    return queries;
}

MassSums& MassSums::operator+=(MassSums const& more) {
    pairs += more.pairs, local += more.local, best += more.best;
    of_rules.resize(more.of_rules.size());
    for (size_t i = 0; i < more.of_rules.size(); ++i) of_rules[i] += more.of_rules[i];
    return *this;
}

std::vector<double> block_masses(std::span<float const> q, std::span<float const> keys, int64_t stride, int64_t size,
                                 double scale) {
    auto const width = std::ssize(q), count = (std::ssize(keys) - width) / stride + 1;
    std::vector<double> scores;
    for (int64_t j = 0; j < count; ++j) {
        float const* const key = keys.data() + j * stride;
        scores.push_back(scale * std::inner_product(q.begin(), q.end(), key, 0.0));
    }
    double const most = std::ranges::max(scores);
    std::vector<double> masses(static_cast<size_t>((count + size - 1) / size));
    double total = 0;
    for (int64_t j = 0; j < count; ++j) {
        double const weight = std::exp(scores[static_cast<size_t>(j)] - most);
        masses[static_cast<size_t>(j / size)] += weight, total += weight;
    }
    for (double& mass : masses) mass /= total;
    return masses;
}

MassMeter::MassMeter() : device_(make_host_device()), ops_(make_host_ops(*device_)) {}
MassMeter::~MassMeter() = default;

MassSums MassMeter::measure(AttentionInputs const& inputs, std::span<int32_t const> cu_seqlens,
                            std::span<int64_t const> queries, std::span<Selection const> rules,
                            BlockBudget const& budget) {
    int64_t const heads = inputs.q_shape[1], K = inputs.q_shape[2], groups = inputs.k_shape[1];
    std::vector<int32_t> chosen(static_cast<size_t>(heads * budget.slots()));
    MassSums sums{.of_rules = std::vector<double>(rules.size())};
    for (int64_t const token : queries) {
        int64_t const begin = document_begin(cu_seqlens, token);
        auto const q_HK =
            std::span(inputs.q_THK).subspan(static_cast<size_t>(token * heads * K), static_cast<size_t>(heads * K));
        std::vector<std::vector<double>> masses;
        for (int64_t head = 0; head < heads; ++head) {
            int64_t const first = (begin * groups + head * groups / heads) * K;
            auto const keys =
                std::span(inputs.k_TGK)
                    .subspan(static_cast<size_t>(first), static_cast<size_t>((token - begin) * groups * K + K));
            masses.push_back(block_masses(q_HK.subspan(static_cast<size_t>(head * K), static_cast<size_t>(K)), keys,
                                          groups * K, budget.block_size, inputs.scale));
            sums.pairs += 1, sums.local += masses.back().back();
            sums.best += best_mass(masses.back(), budget.slots());
        }
        for (size_t rule = 0; rule < rules.size(); ++rule) {
            ops_->select_blocks({.chosen_THS = {chosen.data(), {1, heads, budget.slots()}},
                                 .q_THK = {q_HK.data(), {1, heads, K}},
                                 .k_TGK = {inputs.k_TGK.data(), inputs.k_shape},
                                 .cu_seqlens = cu_seqlens,
                                 .selection = rules[rule],
                                 .query_begin = token,
                                 .first_head = inputs.first_head});
            for (int64_t head = 0; head < heads; ++head)
                sums.of_rules[rule] += mass_of(masses[static_cast<size_t>(head)],
                                               std::span(chosen).subspan(static_cast<size_t>(head * budget.slots()),
                                                                         static_cast<size_t>(budget.slots())));
        }
    }
    return sums;
}

}  // namespace perigee
