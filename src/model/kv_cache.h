// Keys and values of one text, of every layer: what the forward of its next tokens needs of those before.
#pragma once

#include <cstdint>
#include <vector>

#include "model/options.h"
#include "ops/ops.h"
#include "parallel/mesh.h"

namespace perigee {

class KvCache {
  public:
    /// Empty, with room for `capacity` tokens: 2 G K elements per token and layer, G of this tp rank.
    KvCache(Ops& ops, ModelOptions const& model, MeshShape const& mesh, int64_t capacity);

    int64_t tokens() const { return tokens_; }
    int64_t capacity() const { return capacity_; }
    /// The text ends after this many tokens.
    void set_tokens(int64_t tokens);

    /// Of tokens [begin, end): rotated keys, and values, [tokens, G, K]. Tokens may lie beyond the end of the text.
    TensorView keys(int64_t layer, int64_t begin, int64_t end) const { return rows(2 * layer, begin, end); }
    TensorView values(int64_t layer, int64_t begin, int64_t end) const { return rows(2 * layer + 1, begin, end); }

  private:
    TensorView rows(int64_t number, int64_t begin, int64_t end) const;

    int64_t capacity_, room_;  ///< room_: with that for padding to a multiple of tp
    int64_t kv_heads_, head_dim_;
    DType dtype_;
    Buffer memory_;
    int64_t tokens_ = 0;
};

}  // namespace perigee
