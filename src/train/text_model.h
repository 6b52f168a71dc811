// A text that grows token by token, and what the model of a session says comes next.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "model/kv_cache.h"
#include "train/seen_ids.h"
#include "train/session.h"

namespace perigee {

/// Appends these tokens to a text of the cache, a few thousand in a pass, and returns the logits that follow the last.
/// `before_pass` is called before each pass. Collective.
std::vector<float> read_prompt(
    Session& session, std::vector<Selection> const& selections, KvCache& cache, int64_t text,
    std::span<int32_t const> ids, std::function<void()> const& before_pass = [] {});

class TextModel {
  public:
    TextModel(Session& session, std::vector<Selection> selections);

    /// Appends the tokens, at least one, and returns the logits that follow. No token is computed twice: a cache keeps
    /// keys and values. With parallel.context > 1, or a model that cannot use a cache (KvCache::serves), each call
    /// computes the whole text again. Collective.
    std::vector<float> append(std::span<int32_t const> ids);
    /// Appends the tokens and draws the next one. Draws on the device if `ids` is a single token and there is one tp
    /// rank.
    int32_t draw(std::span<int32_t const> ids, Sampler& sampler);
    std::vector<int32_t> const& text() const { return text_; }
    /// The text ends after so many of its tokens.
    void keep(int64_t tokens);

  private:
    /// Room in the cache for a text of this many tokens.
    void reserve(int64_t tokens);
    /// After the last of text_, which are `ids`.
    std::vector<float> next_logits(std::span<int32_t const> ids);

    Session& session_;
    std::vector<Selection> selections_;
    std::vector<int32_t> text_;
    std::optional<KvCache> cache_;
    SeenIds seen_;
};

}  // namespace perigee
