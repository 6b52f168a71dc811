// Loss by position: how much the context helps, and how much of that comes from far away.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eval/suite_options.h"
#include "tensor/batch.h"

namespace perigee {

/// Whether the context of a prediction, the last `far_context` tokens, occurred earlier in its document.
enum class Repeat {
    fresh,  ///< the last `far_context` tokens of its document's text so far did not occur in it before
    near,
    far  ///< they did, and the latest occurrence ended at least `far_distance` tokens before
};
inline constexpr int64_t kRepeats = 3;
char const* to_string(Repeat repeat);

/// Of every place of a batch, by the tokens up to it in its document.
std::vector<Repeat> repeats(Batch const& batch, int64_t far_context, int64_t far_distance);

/// Where bins of positions end, rising: those of the options, with the sequence length as the last one, or its halves.
std::vector<int64_t> position_edges(SuiteOptions const& options, int64_t sequence_length);

/// Of the tokens of a bin.
struct LossSum {
    double weight = 0;
    double nll = 0;    ///< times the weights, in nats
    double bytes = 0;  ///< of text that the targets stand for, times the weights
    double mean() const { return nll / weight; }
    LossSum& operator+=(LossSum const& more);
};

/// Sums by class and bin.
class PositionSums {
  public:
    explicit PositionSums(std::vector<int64_t> edges)
        : edges_(std::move(edges)), sums_(static_cast<size_t>(kRepeats) * edges_.size()) {}

    /// Adds the places of the batch that carry loss. `nll` has one entry per such place, `bytes` one per token id: ids
    /// beyond it stand for none.
    void add(Batch const& batch, std::span<Repeat const> repeats, std::span<double const> nll,
             std::span<int32_t const> bytes);

    std::vector<int64_t> const& edges() const { return edges_; }
    LossSum& at(Repeat repeat, size_t bin) { return sums_[static_cast<size_t>(repeat) * edges_.size() + bin]; }
    /// All sums as numbers in one row, for collectives.
    std::vector<LossSum>& all() { return sums_; }

  private:
    std::vector<int64_t> edges_;
    std::vector<LossSum> sums_;
};

}  // namespace perigee
