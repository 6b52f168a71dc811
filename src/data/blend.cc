#include "data/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace perigee {

std::vector<int64_t> Blend::quotas_of(std::vector<double> const& weights) {
    double const total = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<int64_t> quotas;
    std::vector<double> remainders;
    for (double const weight : weights) {
        double const share = weight / total * static_cast<double>(kPeriod);
        quotas.push_back(static_cast<int64_t>(std::floor(share)));
        remainders.push_back(share - std::floor(share));
    }
    std::vector<size_t> order(weights.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
    int64_t missing = kPeriod - std::accumulate(quotas.begin(), quotas.end(), int64_t{0});
    // A share rounded up to a whole number can make the floors sum to one too many; the largest quota gives it back.
    for (size_t i = 0; missing > 0; i = (i + 1) % order.size(), --missing) ++quotas[order[i]];
    for (; missing < 0; ++missing) --*std::max_element(quotas.begin(), quotas.end());
    return quotas;
}

Blend::Blend(std::vector<double> const& weights) {
    PERIGEE_CHECK(!weights.empty(), "a blend of no data sets");
    for (double const weight : weights) PERIGEE_CHECK(std::isfinite(weight) && weight > 0, "weight {}", weight);
    quotas_ = quotas_of(weights);
    for (size_t i = 0; i < quotas_.size(); ++i) {
        if (quotas_[i] == 0) {
            fail(Category::config, "data set {} of {}: weight {} is less than one sample in {}", i + 1, weights.size(),
                 weights[i], kPeriod);
        }
    }
    auto const sets = static_cast<int64_t>(quotas_.size());
    int64_t const scale = std::max<int64_t>(1, 2 * sets - 2);
    std::vector<int64_t> taken(quotas_.size(), 0);
    for (int64_t slot = 0; slot < kPeriod; ++slot) {
        // Debts count in units of 1 / (kPeriod * scale) samples. Among the data sets that may take this slot without
        // running ahead of their share, the one whose debt would first exceed the bound takes it.
        size_t best = quotas_.size();
        int64_t best_slack = 0;
        for (size_t i = 0; i < quotas_.size(); ++i) {
            int64_t const debt = (quotas_[i] * (slot + 1) - kPeriod * taken[i]) * scale;
            if (debt < kPeriod) continue;
            int64_t const slack = kPeriod * (scale - 1) - debt;
            if (best == quotas_.size() || slack * quotas_[best] < best_slack * quotas_[i]) {
                best = i;
                best_slack = slack;
            }
        }
        PERIGEE_CHECK(best < quotas_.size(), "no data set for slot {}", slot);
        slots_.push_back({static_cast<int32_t>(best), static_cast<int32_t>(taken[best]++)});
    }
}

Blend::Place Blend::at(int64_t index) const {
    PERIGEE_CHECK(index >= 0, "sample {}", index);
    Slot const slot = slots_[static_cast<size_t>(index % kPeriod)];
    return {slot.dataset, index / kPeriod * quotas_[static_cast<size_t>(slot.dataset)] + slot.rank};
}

}  // namespace perigee
