#include "train/guard.h"

#include <cmath>

#include "base/error.h"
#include "base/log.h"

namespace perigee {

Verdict judge_step(TrainOptions const& options, int64_t step, double loss, double grad_norm,
                   int64_t& skipped_in_a_row) {
    if (std::isfinite(loss) && std::isfinite(grad_norm)) {
        skipped_in_a_row = 0;
        return Verdict::apply;
    }
    std::string const what =
        fmt::format("step {}: loss {} and gradient norm {} are not both finite", step, loss, grad_norm);
    if (options.non_finite == NonFinite::stop)
        fail(Category::numeric, "{}; stopped before the update (train.non_finite: stop)", what);
    if (++skipped_in_a_row > options.max_skipped_in_a_row)
        fail(Category::numeric, "{}; {} steps in a row were skipped and train.max_skipped_in_a_row is {}", what,
             skipped_in_a_row, options.max_skipped_in_a_row);
    log::warn("{}; update skipped ({} in a row)", what, skipped_in_a_row);
    return Verdict::skip;
}

}  // namespace perigee
