// Keeps steps away from the weights that would spoil them: what is not finite, and spikes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/options.h"
#include "train/spike.h"

namespace perigee {

/// What to do with the gradients of a step. After `stop` and `roll_back` the weights are not updated either.
enum class Verdict { apply, skip, roll_back, stop };

struct Judgement {
    Verdict verdict = Verdict::apply;
    std::optional<Spike> spike = {};
    bool new_spike = false;    ///< no other one came within the window of steps before it
    std::string warning = {};  ///< of a step that is not finite, or a spike: for one rank to say
};

/// Whether the step is a spike or not finite. Changes nothing.
bool is_suspicious(GuardOptions const& guard, double loss, double grad_norm, RunState const& state);

/// Judges the loss and gradient norm of the whole job, which every rank holds alike, so all ranks decide alike.
/// `state` is that before the step; its counter of skipped steps and what it knows of spikes move on.
/// Throws Category::numeric for a step that is not finite under train.non_finite `stop`; and where more than
/// train.max_skipped_in_a_row steps in a row would be skipped, unless guard.spike is `rollback`.
Judgement judge_step(TrainOptions const& train, GuardOptions const& guard, double loss, double grad_norm,
                     RunState& state);

}  // namespace perigee
