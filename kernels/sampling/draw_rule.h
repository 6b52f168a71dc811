// How a token is drawn from its logits. Shared by host and GPU.
#pragma once

#include <bit>
#include <cstdint>

#include "base/philox.h"

namespace perigee {

/// Sampling options of one text. The repetition penalty divides positive logits of seen ids by repetition_penalty and
/// multiplies the others. Then temperature, top_k, top_p and min_p apply, in this order.
struct DrawRule {
    double temperature = 1;  ///< 0: the most likely token; ties go to the lowest id
    double top_p = 1;        ///< 1: off
    double min_p = 0;
    double repetition_penalty = 1;
    int64_t top_k = 0;  ///< 0: off
    Philox random{0, Purpose::generate};
    int64_t index = 0;  ///< of the random number to draw with; -1: draw nothing
};

/// A token's probability relative to the most likely one: exp((logit - best) * scale).
struct LogitWeight {
    static constexpr float kLeastExponent = -87;  ///< from here on e^x is a normal float
    float best, scale;

    static constexpr float scale_of(double temperature) {
        double const scale = 1 / temperature;
        return static_cast<float>(scale < 1e30 ? scale : 1e30);
    }
    /// e^x for x <= 0 within 3e-7; 0 at or below kLeastExponent. Unlike std::exp, loops over it vectorise.
    static constexpr float exp_of(float x) {
        constexpr float kRound = 12582912, kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
        float const clamped = x > kLeastExponent ? x : kLeastExponent;
        float const n = (clamped * kLog2e + kRound) - kRound;  // to the nearest integer
        float const r = (clamped - n * kLn2High) - n * kLn2Low;
        float p = 1.0f / 720;
        p = p * r + 1.0f / 120, p = p * r + 1.0f / 24, p = p * r + 1.0f / 6;
        p = p * r + 0.5f, p = p * r + 1.0f, p = p * r + 1.0f;
        float const y = std::bit_cast<float>(std::bit_cast<int32_t>(p) + static_cast<int32_t>(n) * (1 << 23));
        return x > kLeastExponent ? y : 0.0f;
    }
    constexpr float operator()(float logit) const { return exp_of((logit - best) * scale); }
};

}  // namespace perigee
