// Names ranks that hold up the others: all of them wait for the slowest in every collective.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/phase_clock.h"
#include "train/session.h"

namespace perigee {

/// Those whose seconds exceed `factor` times the median, which is the lower one of two.
std::vector<int> slow_ranks(std::span<double const> seconds, double factor);

class SlowRanks {
  public:
    /// Looks every `every` steps.
    explicit SlowRanks(int64_t every = 100) : every_(every) {}

    /// Counts what this rank did by itself in a step: everything but communication. Every so many steps, rank 0 warns
    /// of each slow rank: its mean time and the median, its GPU, clock and temperature. The first step after the start
    /// does not count. Collective.
    void take(Session const& session, PhaseSeconds const& phases);

  private:
    int64_t every_;
    int64_t steps_ = -1;  ///< since the last look
    double seconds_ = 0;
};

}  // namespace perigee
