#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace perigee {

namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

double original_length(ModelOptions const& options) {
    int64_t const stated = options.rope_scaling.original_max_position_embeddings;
    return static_cast<double>(stated > 0 ? stated : options.max_position_embeddings);
}

/// Long waves are stretched by `factor`, short ones kept, those between blended (Llama 3.1).
double llama3_frequency(double frequency, RopeScaling const& scaling, double length) {
    double const wave = kTwoPi / frequency;
    if (wave < length / scaling.high_freq_factor) return frequency;
    if (wave > length / scaling.low_freq_factor) return frequency / scaling.factor;
    double const smooth =
        (length / wave - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

/// Dimensions that turn often over the original length are kept, those that turn rarely are stretched by `factor`.
/// Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", arXiv 2309.00071.
void apply_yarn(std::vector<double>& frequencies, ModelOptions const& options) {
    RopeScaling const& scaling = options.rope_scaling;
    auto const size = static_cast<double>(options.head_size());
    auto const dimension_of = [&](double turns) {
        return size * std::log(original_length(options) / (turns * kTwoPi)) / (2 * std::log(options.rope_theta));
    };
    double const low = std::max(std::floor(dimension_of(scaling.beta_fast)), 0.0);
    double high = std::min(std::ceil(dimension_of(scaling.beta_slow)), size - 1);
    if (low == high) high += 0.001;
    for (size_t i = 0; i < frequencies.size(); ++i) {
        double const stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        frequencies[i] *= stretched / scaling.factor + (1 - stretched);
    }
}

}  // namespace

Rope make_rope(ModelOptions const& options) {
    RopeScaling const& scaling = options.rope_scaling;
    int64_t const size = options.head_size();
    Rope rope;
    for (int64_t i = 0; i < size; i += 2)
        rope.inverse_frequencies.push_back(
            std::pow(options.rope_theta, -static_cast<double>(i) / static_cast<double>(size)));
    switch (scaling.type) {
        case RopeType::standard:
            break;
        case RopeType::linear:
            for (double& f : rope.inverse_frequencies) f /= scaling.factor;
            break;
        case RopeType::llama3:
            for (double& f : rope.inverse_frequencies) f = llama3_frequency(f, scaling, original_length(options));
            break;
        case RopeType::yarn:
            apply_yarn(rope.inverse_frequencies, options);
            rope.magnitude = scaling.attention_factor > 0 ? scaling.attention_factor
                             : scaling.factor > 1         ? 0.1 * std::log(scaling.factor) + 1
                                                          : 1;
            break;
    }
    return rope;
}

}  // namespace perigee
