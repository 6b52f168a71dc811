// Tells a spike of the loss or the gradient norm from their noise over the last steps.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace perigee {

/// Where most values of a window lie. One value in ten can be anything and moves it little.
struct Noise {
    double median = 0;
    double sigma = 0;  ///< of a normal distribution as wide as the values; above 0 unless all of them are 0
    double sigmas_above(double value) const { return sigma > 0 ? (value - median) / sigma : 0; }
};
/// Sigma is the larger of two estimates, from the median absolute deviation and from the distance between the median
/// and the 90th percentile, as losses of small batches lean to the right; and at least `least` medians. `values` are
/// finite and not empty.
Noise noise_of(std::vector<double> values, double least);

/// Least sigma, in medians. The norm of healthy runs has single steps of ten medians, which clipping keeps harmless.
inline constexpr double kLeastLossSigma = 1e-3, kLeastNormSigma = 5;

struct Spike {
    double loss_sigmas = 0;  ///< above the median of the window
    double norm_sigmas = 0;
    double sigmas() const { return loss_sigmas > norm_sigmas ? loss_sigmas : norm_sigmas; }
    bool operator==(Spike const&) const = default;
};

/// Judges finite values of a step by those of the last `window` steps and adds them there, a spike as if it had just
/// reached the threshold: many spikes in a row are a new level, single ones leave no trace. Nothing is a spike until
/// half a window of steps is known.
std::optional<Spike> take_step(RunState::Spikes& history, int64_t window, double threshold, double loss,
                               double grad_norm);

}  // namespace perigee
