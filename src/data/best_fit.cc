#include "data/best_fit.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "data/permutation.h"

namespace perigee {

BestFit::BestFit(std::span<int64_t const> sizes, int64_t capacity) {
    for (size_t i = 0; i < sizes.size(); ++i) {
        if (sizes[i] > 0) order_.push_back(static_cast<int64_t>(i));
    }
    auto const size_of = [&](int64_t item) { return sizes[static_cast<size_t>(item)]; };
    std::stable_sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) { return size_of(a) > size_of(b); });

    std::set<std::pair<int64_t, int64_t>> open;  // room left, bin
    std::vector<int64_t> bin_of, counts;
    for (int64_t const item : order_) {
        int64_t const size = size_of(item);
        PERIGEE_CHECK(size <= capacity, "an item of {} for bins of {}", size, capacity);
        sizes_.push_back(size);
        auto const best = open.lower_bound({size, 0});
        auto const bin = best == open.end() ? static_cast<int64_t>(counts.size()) : best->second;
        int64_t const room = (best == open.end() ? capacity : best->first) - size;
        if (best == open.end()) {
            counts.push_back(0);
        } else {
            open.erase(best);
        }
        if (room > 0) open.emplace(room, bin);
        bin_of.push_back(bin);
        ++counts[static_cast<size_t>(bin)];
    }

    begins_.push_back(0);
    for (int64_t const count : counts) begins_.push_back(begins_.back() + count);
    ranks_.resize(order_.size());
    std::vector<int64_t> next(begins_.begin(), begins_.end() - 1);
    for (size_t rank = 0; rank < bin_of.size(); ++rank) {
        ranks_[static_cast<size_t>(next[static_cast<size_t>(bin_of[rank])]++)] = static_cast<int64_t>(rank);
    }
}

std::pair<int64_t, int64_t> BestFit::equals(int64_t rank) const {
    auto const [begin, end] =
        std::equal_range(sizes_.begin(), sizes_.end(), sizes_[static_cast<size_t>(rank)], std::greater<>());
    return {begin - sizes_.begin(), end - sizes_.begin()};
}

std::vector<int64_t> BestFit::items(int64_t bin, Philox const* key) const {
    PERIGEE_CHECK(0 <= bin && bin < bins(), "bin {} of {}", bin, bins());
    std::vector<int64_t> items;
    for (int64_t i = begins_[static_cast<size_t>(bin)]; i < begins_[static_cast<size_t>(bin) + 1]; ++i) {
        int64_t rank = ranks_[static_cast<size_t>(i)];
        if (key != nullptr) {
            auto const [begin, end] = equals(rank);
            uint64_t const of_size = key->u64(static_cast<uint64_t>(sizes_[static_cast<size_t>(rank)]));
            Permutation const order(static_cast<uint64_t>(end - begin), Philox(of_size, Purpose::document_order));
            rank = begin + static_cast<int64_t>(order(static_cast<uint64_t>(rank - begin)));
        }
        items.push_back(order_[static_cast<size_t>(rank)]);
    }
    return items;
}

}  // namespace perigee
