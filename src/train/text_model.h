// A text that grows token by token, and what the model of a session says comes next.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/kv_cache.h"
#include "train/session.h"

namespace perigee {

class TextModel {
  public:
    TextModel(Session& session, std::vector<Selection> selections);

    /// Appends the tokens, of which there must be some, and returns the logits that follow. On the CPU no token is
    /// computed twice: keys and values are kept. On a GPU, and where parallel.context cuts the text, everything is
    /// computed from the whole text. Collective.
    std::vector<float> append(std::span<int32_t const> ids);
    std::vector<int32_t> const& text() const { return text_; }

  private:
    /// Room in the cache for a text of this many tokens.
    void reserve(int64_t tokens);

    Session& session_;
    std::vector<Selection> selections_;
    std::vector<int32_t> text_;
    std::optional<KvCache> cache_;
};

}  // namespace perigee
