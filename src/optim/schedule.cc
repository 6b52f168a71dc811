#include <algorithm>
#include <cmath>
#include <numbers>

#include "optim/optimizer.h"

namespace perigee {

void describe(Schema& schema, ScheduleOptions& options) {
    schema
        .add("warmup_steps", options.warmup_steps, between(0, kMostSteps),
             "steps over which the learning rate rises linearly to its peak")
        .choice(
            "decay", options.decay,
            {{"cosine", Decay::cosine}, {"linear", Decay::linear}, {"wsd", Decay::wsd}, {"constant", Decay::constant}},
            "course after the warm-up; wsd stays at the peak and falls linearly at the end")
        .add("min_lr_ratio", options.min_lr_ratio, between(0, 1),
             "learning rate after the last step, as a share of the peak")
        .add("decay_steps", options.decay_steps, between(0, kMostSteps),
             "wsd: steps of the final fall; 0 takes a fifth of the run");
}

double learning_rate(ScheduleOptions const& options, double peak, int64_t step, int64_t total_steps) {
    int64_t const warmup = options.warmup_steps;
    if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
    if (options.decay == Decay::constant) return peak;

    // The fall covers steps [begin, total): its first step is still at the peak, and the end would be step `total`.
    int64_t begin = warmup;
    if (options.decay == Decay::wsd) {
        int64_t const length = options.decay_steps > 0 ? options.decay_steps : std::max<int64_t>(1, total_steps / 5);
        begin = std::max(begin, total_steps - length);
    }
    if (step < begin) return peak;
    double const progress =
        step < total_steps ? static_cast<double>(step - begin) / static_cast<double>(total_steps - begin) : 1.0;
    double const height =
        options.decay == Decay::cosine ? 0.5 * (1.0 + std::cos(std::numbers::pi * progress)) : 1.0 - progress;
    return peak * (options.min_lr_ratio + (1.0 - options.min_lr_ratio) * height);
}

}  // namespace perigee
