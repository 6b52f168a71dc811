// The parts of MoBA's gate that training and decoding share: a block's mean key, and the best blocks of a query.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/moba_gate/options.h"

namespace perigee::host {

/// mean = the mean of `rows` rows, in their order; row_at(i) points to the i-th.
template <class Real, class At>
void mean_of_rows(Real* mean, int64_t width, int64_t rows, At row_at) {
    std::fill_n(mean, width, Real{0});
    for (int64_t row = 0; row < rows; ++row) {
        Real const* const x = row_at(row);
        for (int64_t i = 0; i < width; ++i) mean[i] += x[i];
    }
    for (int64_t i = 0; i < width; ++i) mean[i] /= static_cast<Real>(rows);
}

/// Chooses for one query at a time. Scans from the latest block to the first with strict comparisons, so that the later
/// of equal scores wins and NaN never does.
template <class Real>
class Chooser {
  public:
    Chooser(int64_t slots, MobaOptions const& gate)
        : force_previous_(gate.force_previous), force_first_(gate.force_first), best_(slots) {}

    /// `scores` of the blocks before `current`; writes all slots of `chosen`.
    void choose(Real const* scores, int64_t current, int32_t* chosen) {
        int64_t const first = force_first_ && current > 0 ? 1 : 0;  // first block that competes, and its slot
        if (first > 0) *chosen++ = 0;
        int64_t const slots = std::ssize(best_) - first;
        int64_t const forced = force_previous_ && current > first ? 1 : 0;
        if (forced > 0) chosen[0] = static_cast<int32_t>(current - 1);
        int64_t found = forced;
        for (int64_t block = current - forced; block-- > first && forced < slots;) {
            Real const score = scores[block];
            if (std::isnan(score) || (found == slots && !(score > best_[slots - 1]))) continue;
            int64_t place = std::min(found, slots - 1);
            for (; place > forced && best_[place - 1] < score; --place) {
                best_[place] = best_[place - 1];
                chosen[place] = chosen[place - 1];
            }
            best_[place] = score;
            chosen[place] = static_cast<int32_t>(block);
            found = std::min(found + 1, slots);
        }
        std::sort(chosen, chosen + found);
        std::fill(chosen + found, chosen + slots, -1);
    }

  private:
    bool force_previous_, force_first_;
    std::vector<Real> best_;  ///< scores of the chosen blocks, best first
};

/// out[r] = the sum of the group's queries of row r.
template <class Real>
void sum_group(Real const* q, int64_t rows, int64_t stride, int64_t group, int64_t dim, Real* out) {
    for (int64_t r = 0; r < rows; ++r) {
        std::copy_n(q + r * stride, dim, out + r * dim);
        for (int64_t j = 1; j < group; ++j)
            for (int64_t i = 0; i < dim; ++i) out[r * dim + i] += q[r * stride + j * dim + i];
    }
}

}  // namespace perigee::host
