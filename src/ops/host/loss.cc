#include <cmath>
#include <limits>

#include "ops/host/fast_math.h"
#include "ops/host/functions.h"
#include "ops/host/parallel.h"

namespace perigee::host {

template <class Real>
void softmax_stats(SoftmaxStats const& args) {
    int64_t const vocab = args.logits_TV[1];
    Real const* const logits = args.logits_TV.as<Real>();
    int32_t const* const targets = args.targets_T.as<int32_t>();
    Real* const max = args.max_T.as<Real>();
    Real* const sum = args.sum_T.as<Real>();
    Real* const target = args.target_T.as<Real>();
    parallel_ranges(args.logits_TV[0], row_grain(vocab), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            Real const* const row = logits + t * vocab;
            Real largest = -std::numeric_limits<Real>::infinity();
#pragma omp simd reduction(max : largest)
            for (int64_t i = 0; i < vocab; ++i) largest = largest < row[i] ? row[i] : largest;
            double total = 0;  // the largest term is 1: next to it, fp32 rounds the many small ones away
#pragma omp simd reduction(+ : total)
            for (int64_t i = 0; i < vocab; ++i) total += exp_approx(row[i] - largest);
            max[t] = largest;
            sum[t] = static_cast<Real>(total);
            int64_t const local = targets[t] - args.vocab_begin;
            target[t] = 0 <= local && local < vocab ? row[local] : Real(0);
        }
    });
}

template <class Real>
void softmax_rescale(SoftmaxRescale const& args) {
    Real* const sum = args.sum_T.as<Real>();
    Real const* const max = args.max_T.as<Real>();
    Real const* const global_max = args.global_max_T.as<Real>();
    for (int64_t t = 0; t < args.sum_T.size(); ++t) sum[t] *= exp_approx(max[t] - global_max[t]);
}

template <class Real>
void cross_entropy(CrossEntropy const& args) {
    int64_t const vocab = args.logits_TV[1];
    Real const* const logits = args.logits_TV.as<Real>();
    int32_t const* const targets = args.targets_T.as<int32_t>();
    float const* const weights = args.weights_T.as<float>();
    Real const* const max = args.max_T.as<Real>();
    Real const* const sum = args.sum_T.as<Real>();
    Real const* const target = args.target_T.as<Real>();
    Real* const nll = args.nll_T.as<Real>();
    Real* const dlogits = args.dlogits_TV.empty() ? nullptr : args.dlogits_TV.as<Real>();
    auto const gradient = [&](int64_t t) {
        Real const* const row = logits + t * vocab;
        Real* const drow = dlogits + t * vocab;
        Real const factor = static_cast<Real>(weights[t] * args.scale), shift = max[t], scaled = factor / sum[t];
#pragma omp simd
        for (int64_t i = 0; i < vocab; ++i) drow[i] = scaled * exp_approx(row[i] - shift);
        int64_t const local = targets[t] - args.vocab_begin;
        if (0 <= local && local < vocab) drow[local] -= factor;
    };
    parallel_ranges(args.logits_TV[0], row_grain(vocab), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            bool const masked = weights[t] == 0;
            nll[t] = masked ? Real(0) : max[t] + std::log(sum[t]) - target[t];
            if (dlogits == nullptr) continue;
            if (masked)
                std::fill_n(dlogits + t * vocab, vocab, Real(0));
            else
                gradient(t);
        }
    });
}

template void softmax_stats<float>(SoftmaxStats const&);
template void softmax_stats<double>(SoftmaxStats const&);
template void softmax_rescale<float>(SoftmaxRescale const&);
template void softmax_rescale<double>(SoftmaxRescale const&);
template void cross_entropy<float>(CrossEntropy const&);
template void cross_entropy<double>(CrossEntropy const&);

}  // namespace perigee::host
