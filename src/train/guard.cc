#include "train/guard.h"

#include <cmath>

#include "base/error.h"

namespace perigee {

namespace {

std::string describe(Spike const& spike) {
    return fmt::format("loss {:+.1f} and gradient norm {:+.1f} sigma from their medians", spike.loss_sigmas,
                       spike.norm_sigmas);
}

/// A step whose gradients are not used; `what` says why.
Judgement skip(TrainOptions const& train, GuardOptions const& guard, std::string const& what, int64_t& in_a_row) {
    if (++in_a_row <= train.max_skipped_in_a_row)
        return {.verdict = Verdict::skip, .warning = fmt::format("{}; update skipped ({} in a row)", what, in_a_row)};
    if (guard.spike == SpikePolicy::rollback) return {.verdict = Verdict::roll_back, .warning = what};
    fail(Category::numeric, "{}; {} steps in a row were skipped and train.max_skipped_in_a_row is {}", what, in_a_row,
         train.max_skipped_in_a_row);
}

Judgement judge_spike(TrainOptions const& train, GuardOptions const& guard, std::string const& what,
                      int64_t& in_a_row) {
    if (guard.spike == SpikePolicy::skip) return skip(train, guard, what, in_a_row);
    in_a_row = 0;
    Verdict const verdict = guard.spike == SpikePolicy::rollback ? Verdict::roll_back
                            : guard.spike == SpikePolicy::stop   ? Verdict::stop
                                                                 : Verdict::apply;
    return {.verdict = verdict, .warning = what};
}

}  // namespace

bool is_suspicious(GuardOptions const& guard, double loss, double grad_norm, RunState const& state) {
    if (!std::isfinite(loss) || !std::isfinite(grad_norm)) return true;
    RunState::Spikes history = state.spikes;
    return take_step(history, guard.spike_window, guard.spike_sigma, loss, grad_norm).has_value();
}

Judgement judge_step(TrainOptions const& train, GuardOptions const& guard, double loss, double grad_norm,
                     RunState& state) {
    int64_t const step = state.step + 1;
    Judgement result;
    std::string const what = fmt::format("step {}: loss {} and gradient norm {}", step, loss, grad_norm);
    if (!std::isfinite(loss) || !std::isfinite(grad_norm)) {
        if (train.non_finite == NonFinite::stop)
            fail(Category::numeric, "{} are not both finite; stopped before the update (train.non_finite: stop)", what);
        result = skip(train, guard, what + " are not both finite", state.skipped_in_a_row);
    } else {
        auto const spike = take_step(state.spikes, guard.spike_window, guard.spike_sigma, loss, grad_norm);
        if (!spike)
            state.skipped_in_a_row = 0;
        else
            result = judge_spike(train, guard, fmt::format("{} are a spike: {}", what, describe(*spike)),
                                 state.skipped_in_a_row);
        result.spike = spike;
    }
    if (!result.spike && result.verdict != Verdict::roll_back) return result;
    int64_t& last = state.spikes.last;
    result.new_spike = last == 0 || step > last + guard.spike_window;
    if (result.new_spike) state.spikes.rollbacks = 0;
    last = step;
    return result;
}

}  // namespace perigee
