// Whole documents into samples with little waste: best-fit decreasing (Johnson et al., SIAM J. Comput. 3, 1974; for
// language models Ding et al., "Fewer truncations improve language modeling", ICML 2024). The plan is made of lengths
// alone, so an epoch always has the same number of samples; which of the documents of equal length takes which of their
// places may change from epoch to epoch.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/philox.h"

namespace perigee {

class BestFit {
  public:
    /// Items with these sizes into bins of `capacity`, each item into the fullest bin that has room for it, longest
    /// first. Items of size 0 or less go nowhere; none is larger than `capacity`. About 16 bytes per item.
    BestFit(std::span<int64_t const> sizes, int64_t capacity);

    int64_t bins() const { return static_cast<int64_t>(begins_.size()) - 1; }
    /// Items of a bin, largest first. With `key`, items of equal size change places among all bins.
    std::vector<int64_t> items(int64_t bin, Philox const* key) const;

  private:
    /// Items [begin, end) of order_ that are as large as the one at `rank`.
    std::pair<int64_t, int64_t> equals(int64_t rank) const;

    std::vector<int64_t> order_;  ///< items, largest first
    std::vector<int64_t> sizes_;  ///< of them
    std::vector<int64_t> ranks_;  ///< bin after bin, places in order_
    std::vector<int64_t> begins_;
};

}  // namespace perigee
