#include "eval/mass.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace perigee {

namespace {

/// First token of the token's document.
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

std::vector<int64_t> choosing_queries(Batch const& batch, BlockBudget const& budget, int64_t count) {
    std::vector<int64_t> all;
    for (size_t i = 1; i < batch.cu_seqlens.size(); ++i) {
        int64_t const begin = batch.cu_seqlens[i - 1], end = batch.cu_seqlens[i];
        for (int64_t t = begin + budget.top_k * budget.block_size; t < end; ++t)
            if (batch.weights_T[static_cast<size_t>(t)] != 0) all.push_back(t);
    }
    int64_t const some = std::min<int64_t>(count, std::ssize(all));
    std::vector<int64_t> queries;
    for (int64_t i = 0; i < some; ++i)
        queries.push_back(all[static_cast<size_t>((2 * i + 1) * std::ssize(all) / (2 * some))]);
    return queries;
}

std::vector<double> block_masses(std::span<float const> q, std::span<float const> keys, int64_t stride, int64_t size,
                                 double scale) {
    auto const width = std::ssize(q), count = (std::ssize(keys) - width) / stride + 1;
    std::vector<double> scores;
    for (int64_t j = 0; j < count; ++j) {
        float const* const key = keys.data() + j * stride;
        double dot = 0;
        for (int64_t i = 0; i < width; ++i) dot += double{q[static_cast<size_t>(i)]} * key[i];
        scores.push_back(scale * dot);
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

std::vector<double> MassMeter::measure(AttentionInputs const& inputs, std::span<int32_t const> cu_seqlens,
                                       std::span<int64_t const> queries, std::span<Selection const> rules,
                                       BlockBudget const& budget) {
    int64_t const heads = inputs.q_shape[1], K = inputs.q_shape[2], groups = inputs.k_shape[1];
    auto const slots = static_cast<size_t>(budget.slots());
    auto const shares_of = [&](int64_t token) {
        int64_t const begin = document_begin(cu_seqlens, token), visible = token + 1 - begin;
        float const* const q_HK = inputs.q_THK.data() + token * heads * K;
        float const* const keys = inputs.k_TGK.data() + begin * groups * K;
        int64_t const past = (visible - 1) * groups * K;
        std::vector<std::vector<double>> masses;
        std::vector<double> shares(rules.size() + 2);
        for (int64_t head = 0; head < heads; ++head) {
            masses.push_back(block_masses({q_HK + head * K, static_cast<size_t>(K)},
                                          {keys + head * groups / heads * K, static_cast<size_t>(past + K)}, groups * K,
                                          budget.block_size, inputs.scale));
            shares.front() += masses.back().back();
            shares.back() += best_mass(masses.back(), budget.slots());
        }
        std::vector<int32_t> chosen(static_cast<size_t>(heads) * slots);
        int32_t const borders[] = {0, static_cast<int32_t>(visible)};
        for (size_t rule = 0; rule < rules.size(); ++rule) {
            ops_->select_blocks({.chosen_THS = {chosen.data(), {1, heads, budget.slots()}},
                                 .q_THK = {q_HK, {1, heads, K}},
                                 .k_TGK = {keys, {visible, groups, K}},
                                 .cu_seqlens = borders,
                                 .selection = rules[rule],
                                 .query_begin = visible - 1,
                                 .first_head = inputs.first_head});
            for (size_t head = 0; head < masses.size(); ++head)
                shares[1 + rule] += mass_of(masses[head], std::span(chosen).subspan(head * slots, slots));
        }
        return shares;
    };
    std::vector<std::vector<double>> of_query(queries.size());
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < queries.size(); ++i) of_query[i] = shares_of(queries[i]);
    std::vector<double> sums(rules.size() + 2);
    for (auto const& shares : of_query) std::ranges::transform(sums, shares, sums.begin(), std::plus());
    return sums;
}

}  // namespace perigee
