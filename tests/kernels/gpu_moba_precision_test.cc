// FlashAttention's rule for MoBA on the GPU: against the fp64 reference, given the kernels' own choice of blocks, the
// largest error is at most twice that of a plain bf16 implementation, which keeps scores, weights, their gradients and
// all results as bf16.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "kernels/gpu_moba.h"

namespace perigee {
namespace {

using testing::GpuMoba;
using testing::GpuMobaCase;
using testing::make_gpu_problem;
using GpuMobaPrecision = testing::GpuMobaTest;

double rounded(double x) { return to_float(to_bf16(static_cast<float>(x))); }

double dot(double const* x, double const* y, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += x[i] * y[i];
    return sum;
}
void add_times(double factor, double const* x, int64_t count, double* to) {
    for (int64_t i = 0; i < count; ++i) to[i] += factor * x[i];
}

/// Attention as matrices: scores, weights, their gradients and all results are kept in bf16; sums are exact.
class PlainAttention {
  public:
    PlainAttention(ReferenceProblem const& p, int64_t block_size, std::vector<int32_t> const& chosen)
        : p_(p), block_size_(block_size), chosen_(chosen) {
        for (auto* x : {&result_.o, &result_.dq}) x->resize(p.q.size());
        for (auto* x : {&result_.dk, &result_.dv}) x->resize(p.k.size());
        for (size_t d = 0; d + 1 < p.cu_seqlens.size(); ++d)
            for (int64_t t = p.cu_seqlens[d]; t < p.cu_seqlens[d + 1]; ++t)
                for (int64_t h = 0; h < p.heads; ++h) row(p.cu_seqlens[d], t, h);
        for (auto* x : {&result_.o, &result_.dq, &result_.dk, &result_.dv})
            std::transform(x->begin(), x->end(), x->begin(), rounded);
    }
    ReferenceResult const& result() const { return result_; }

  private:
    /// Tokens that the row attends.
    std::vector<int64_t> keys_of(int64_t document, int64_t t, int64_t h) const {
        int64_t const slots = std::ssize(chosen_) / (p_.tokens() * p_.heads);
        std::vector<int64_t> keys;
        auto const add = [&](int64_t block) {
            int64_t const first = document + block * block_size_;
            for (int64_t u = first; u < first + block_size_ && u <= t; ++u) keys.push_back(u);
        };
        for (int64_t s = 0; s < slots; ++s)
            if (int32_t const block = chosen_[(t * p_.heads + h) * slots + s]; block >= 0) add(block);
        add((t - document) / block_size_);
        return keys;
    }
    void row(int64_t document, int64_t t, int64_t h) {
        int64_t const K = p_.head_dim, group = p_.heads / p_.kv_heads, at = (t * p_.heads + h) * K;
        std::vector<int64_t> const keys = keys_of(document, t, h);
        auto const key_at = [&](int64_t u) { return (u * p_.kv_heads + h / group) * K; };
        std::vector<double> weights, dp;
        double most = -INFINITY, sum = 0, delta = 0;
        for (int64_t const u : keys) {
            weights.push_back(rounded(p_.scale * rounded(dot(&p_.q[at], &p_.k[key_at(u)], K))));
            dp.push_back(rounded(dot(&p_.d_o[at], &p_.v[key_at(u)], K)));
            most = std::max(most, weights.back());
        }
        for (double& w : weights) sum += w = std::exp(w - most);
        for (size_t i = 0; i < keys.size(); ++i) {
            weights[i] = rounded(weights[i] / sum);
            delta += weights[i] * dp[i];
        }
        for (size_t i = 0; i < keys.size(); ++i) {
            int64_t const key = key_at(keys[i]);
            double const ds = rounded(weights[i] * (dp[i] - delta));
            add_times(weights[i], &p_.v[key], K, &result_.o[at]);
            add_times(ds * p_.scale, &p_.k[key], K, &result_.dq[at]);
            add_times(ds * p_.scale, &p_.q[at], K, &result_.dk[key]);
            add_times(weights[i], &p_.d_o[at], K, &result_.dv[key]);
        }
    }

    ReferenceProblem const& p_;
    int64_t block_size_;
    std::vector<int32_t> const& chosen_;
    ReferenceResult result_;
};

/// From the first-th number on.
double largest_error(std::vector<double> const& x, std::vector<double> const& truth, int64_t first) {
    double most = x.size() == truth.size() ? 0 : INFINITY;
    for (auto i = static_cast<size_t>(first); i < x.size(); ++i)
        most = std::max(most, std::isnan(x[i]) ? INFINITY : std::abs(x[i] - truth[i]));
    return most;
}

TEST_F(GpuMobaPrecision, ErrorsAreAtMostTwiceThoseOfAPlainImplementation) {
    for (auto const& [dim, B, k, T] : {std::tuple{64, 64, 3, 700},
                                       {64, 128, 8, 1300},
                                       {64, 128, 16, 2200},
                                       {128, 128, 8, 1300},
                                       {128, 512, 3, 1700},
                                       {128, 640, 4, 2600}}) {
        GpuMobaCase const c{.cu_seqlens = {0, 77, T},
                            .heads = 2,
                            .kv_heads = 1,
                            .head_dim = dim,
                            .options = {.block_size = B, .top_k = k},
                            .seed = static_cast<uint64_t>(dim + B + k)};
        auto const p = make_gpu_problem(c);
        GpuMoba gpu(p, c.options);
        auto const chosen = gpu.select();
        gpu.choose(chosen);
        auto const truth = reference_moba(p, B, chosen);
        auto const plain = PlainAttention(p, B, chosen).result();
        auto const expect_rule = [&](std::vector<double> const& x, std::vector<double> ReferenceResult::*member,
                                     std::string const& what) {
            auto const expect_from = [&](int64_t token) {
                int64_t const first = token * std::ssize(x) / T;
                EXPECT_LE(largest_error(x, truth.*member, first),
                          2 * largest_error(plain.*member, truth.*member, first))
                    << what << " from token " << token << " of " << to_string(gpu.shape());
            };
            expect_from(0);
            expect_from(77 + B * (k - 1));  // queries that see k blocks
        };
        auto const forward = gpu.forward();
        expect_rule(forward.o, &ReferenceResult::o, "o");
        for (bool const any_order : {false, true}) {
            if (any_order) gpu.add_in_any_order();
            auto const backward = gpu.backward(forward.o, forward.lse);
            expect_rule(backward.dq, &ReferenceResult::dq, any_order ? "dq, any order," : "dq");
            expect_rule(backward.dk, &ReferenceResult::dk, any_order ? "dk, any order," : "dk");
            expect_rule(backward.dv, &ReferenceResult::dv, any_order ? "dv, any order," : "dv");
        }
    }
}

}  // namespace
}  // namespace perigee
