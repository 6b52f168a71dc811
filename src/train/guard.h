// Keeps a non-finite step away from the weights.
#pragma once

#include <cstdint>
#include <string>

#include "train/options.h"

namespace perigee {

/// What to do with the gradients of a step.
enum class Verdict { apply, skip };

/// Judges the loss and gradient norm of the whole job, which every rank holds alike, so all ranks decide alike.
/// `skipped_in_a_row` is the run's counter: set to 0 by a finite step, raised by a skipped one.
/// Throws Category::numeric under policy `stop`, or once more than max_skipped_in_a_row steps in a row were not finite.
Verdict judge_step(TrainOptions const& options, int64_t step, double loss, double grad_norm, int64_t& skipped_in_a_row);

}  // namespace perigee
