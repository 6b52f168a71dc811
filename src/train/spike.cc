#include "train/spike.h"

#include <algorithm>
#include <cmath>

namespace perigee {

namespace {

/// The value that this share of `values` does not exceed.
double quantile(std::vector<double>& values, double share) {
    auto const at = static_cast<ptrdiff_t>(share * static_cast<double>(values.size() - 1));
    std::ranges::nth_element(values, values.begin() + at);
    return values[static_cast<size_t>(at)];
}

void add(std::vector<double>& values, int64_t window, double value) {
    values.push_back(value);
    if (std::ssize(values) > window) values.erase(values.begin(), values.end() - window);
}

/// Adds `value`, at most as large as the threshold; returns how far it lies above the median.
double judge(std::vector<double>& values, int64_t window, double threshold, double least, double value) {
    if (std::ssize(values) < std::max<int64_t>(1, window / 2)) {
        add(values, window, value);
        return 0;
    }
    Noise const noise = noise_of(values, least);
    add(values, window, noise.sigma > 0 ? std::min(value, noise.median + threshold * noise.sigma) : value);
    return noise.sigmas_above(value);
}

}  // namespace

Noise noise_of(std::vector<double> values, double least) {
    constexpr double kOfMedianDeviation = 1.4826, kOf90th = 1.2816;
    double const median = quantile(values, 0.5), high = quantile(values, 0.9);
    for (double& x : values) x = std::abs(x - median);
    double const deviation = quantile(values, 0.5);
    return {median, std::max({kOfMedianDeviation * deviation, (high - median) / kOf90th, least * std::abs(median)})};
}

std::optional<Spike> take_step(RunState::Spikes& history, int64_t window, double threshold, double loss,
                               double grad_norm) {
    Spike const spike{.loss_sigmas = judge(history.losses, window, threshold, kLeastLossSigma, loss),
                      .norm_sigmas = judge(history.grad_norms, window, threshold, kLeastNormSigma, grad_norm)};
    return spike.sigmas() > threshold ? std::optional(spike) : std::nullopt;
}

}  // namespace perigee
