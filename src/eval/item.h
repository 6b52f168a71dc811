// A question over a long text that has one right answer, and who judges a model by it. An item is tokens, so it can be
// scored by any Scorer: forced decoding reads it in one pass, generation writes the answer token by token.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace perigee {

struct Item {
    std::string task = {};
    int64_t length = 0;                ///< tokens that are read: all of prompt and answer but the last one
    std::optional<double> depth = {};  ///< of the needle: the share of the text before it
    int64_t number = 0;                ///< among the items of the same task, length and depth
    std::vector<int32_t> prompt = {};
    std::vector<int32_t> answer = {};
};

struct ItemScore {
    int64_t correct = 0;                                    ///< tokens of the answer that greedy decoding gives
    double nll = std::numeric_limits<double>::quiet_NaN();  ///< of the whole answer, in nats, where it was computed
};

/// Greedy decoding gives the answer.
inline bool passes(Item const& item, ItemScore const& score) { return score.correct == std::ssize(item.answer); }

class Scorer {
  public:
    virtual ~Scorer() = default;
    virtual char const* name() const = 0;
    /// One score per item. Collective: all ranks are given the same items, and receive the same scores.
    virtual std::vector<ItemScore> score(std::span<Item const> items) = 0;
};

}  // namespace perigee
