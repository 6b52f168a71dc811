// Mixing data sets by weight: which data set the i-th sample comes from, and how many of that data set's samples came
// before it. A table of one period decides, so any sample is found in constant time and without state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace perigee {

class Blend {
  public:
    /// Samples after which the pattern repeats, and so the resolution of the shares.
    static constexpr int64_t kPeriod = 4096;

    struct Place {
        int64_t dataset;
        int64_t index;  ///< counts this data set's samples from 0
    };

    /// Weights are relative and positive. Each data set owns a whole number of samples per period, by largest
    /// remainder. Within every prefix of the sample sequence each data set's count differs from its share (quota /
    /// kPeriod) by less than one sample: at most 1 - 1 / (2 * data sets - 2). Order: Tijdeman, "The chairman assignment
    /// problem", Discrete Mathematics 32 (1980).
    explicit Blend(std::vector<double> const& weights);

    /// Place of sample `index` >= 0.
    Place at(int64_t index) const;
    std::vector<int64_t> const& quotas() const { return quotas_; }

    /// Samples per period by largest remainder; sums to kPeriod. A zero means that the weight is too small to be heard.
    static std::vector<int64_t> quotas_of(std::vector<double> const& weights);

  private:
    struct Slot {
        int32_t dataset;
        int32_t rank;  ///< earlier slots of the same data set in the period
    };
    std::vector<int64_t> quotas_;
    std::vector<Slot> slots_;
};

}  // namespace perigee
