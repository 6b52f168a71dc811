// Who judges items with the model of a session. Ranks of dp share the items, those of cp and tp each item.
#pragma once

#include <functional>
#include <vector>

#include "eval/item.h"
#include "train/session.h"

namespace perigee {

/// What scorers compute with.
struct ScoredModel {
    Session& session;
    std::vector<Selection> selections;             ///< of every layer
    int64_t allowed = 0;                           ///< ids that may be decoded: those of the tokenizer
    std::function<void()> before_forward = [] {};  ///< a sign of life for who watches
};

/// One forward for prompt and answer. A token is right where it is the likeliest after the right tokens before it, so
/// an item passes exactly when greedy decoding writes its answer. Short items share a forward.
class ForcedDecoding final : public Scorer {
  public:
    explicit ForcedDecoding(ScoredModel model) : model_(std::move(model)) {}
    char const* name() const override { return "forced"; }
    std::vector<ItemScore> score(std::span<Item const> items) override;

  private:
    ScoredModel model_;
};

/// Writes the answer token by token, as `perigee generate` does at temperature 0, up to the first wrong token. Gives no
/// nll.
class GreedyDecoding final : public Scorer {
  public:
    explicit GreedyDecoding(ScoredModel model) : model_(std::move(model)) {}
    char const* name() const override { return "generate"; }
    std::vector<ItemScore> score(std::span<Item const> items) override;

  private:
    int64_t right_tokens(Item const& item);
    ScoredModel model_;
};

}  // namespace perigee
