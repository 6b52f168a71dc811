// Keys, values and block means of some texts, of every layer: what the forward of their next tokens needs of those
// before. Memory is in pages, which texts take as they grow and give back at their end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/options.h"
#include "ops/ops.h"
#include "parallel/mesh.h"

namespace perigee {

/// What a cache has room for.
struct CacheRoom {
    int64_t tokens = 0;      ///< of the longest text
    int64_t block_size = 0;  ///< B of block-sparse layers
    int64_t texts = 1;
    int64_t pages = 0;      ///< for all texts; 0: enough for all of them at their longest
    int64_t page_size = 0;  ///< P, a divisor of B; 0: page_size_of(B)
};

/// The block size that these layers share, or one that suits full attention. Category::config where they have several.
int64_t block_size_of(std::span<Selection const> selections);
/// B up to 512 tokens, else its largest divisor from 128 to 512, or B where there is none.
int64_t page_size_of(int64_t block_size);

class KvCache {
  public:
    /// Whether a model can use a cache: it has no key convolution, and the kernels of `ops` take its heads.
    static bool serves(Ops& ops, ModelOptions const& model);

    /// Bytes of a page, of all layers: per layer 2 P G K elements and a mean of G K, with G of this tp rank.
    static int64_t page_bytes(Ops& ops, ModelOptions const& model, MeshShape const& mesh, int64_t page_size);

    /// Scratch bytes for decoding all texts, besides the cache: partial results and scores.
    static int64_t decode_bytes(Ops& ops, ModelOptions const& model, MeshShape const& mesh, CacheRoom const& room);
    /// Pages that fit in `bytes` together with that scratch memory; at least one.
    static int64_t pages_within(int64_t bytes, Ops& ops, ModelOptions const& model, MeshShape const& mesh,
                                CacheRoom const& room);

    /// Empty.
    KvCache(Ops& ops, ModelOptions const& model, MeshShape const& mesh, CacheRoom const& room);

    // `text` is a number from 0 to texts() - 1.
    int64_t texts() const { return std::ssize(tokens_); }
    int64_t capacity() const { return capacity_; }  ///< tokens a text may have
    int64_t block_size() const { return block_size_; }
    int64_t page_size() const { return page_size_; }
    int64_t tokens(int64_t text = 0) const { return tokens_[static_cast<size_t>(text)]; }
    int64_t free_pages() const { return std::ssize(free_); }
    int64_t bytes() const { return static_cast<int64_t>(memory_.bytes()); }
    /// A number that no cache has had before, since texts or pages last changed.
    int64_t state() const { return state_; }

    /// Takes pages until the text has room for so many tokens, padding to a multiple of tp included. False, and nothing
    /// changes, where too few are free.
    bool make_room(int64_t text, int64_t tokens);
    /// The text ends after this many tokens. It keeps its pages.
    void set_tokens(int64_t tokens, int64_t text = 0);
    /// No tokens; its pages are free.
    void clear(int64_t text);

    /// Copies all texts of a smaller cache of the same model, as many texts and the same pages' size.
    void take_over(KvCache const& from);

    /// A layer's pages, and the rows of the table of texts [begin, end); rows past texts() exist up to a multiple of
    /// tp.
    CachePages pages(int64_t layer, int64_t begin, int64_t end) const;

    /// Tokens [begin, end) of a text whose rows in a layer's pool, [rows, G, K], begin at `row` and are neighbours.
    struct Run {
        int64_t begin, end, row;
    };
    std::vector<Run> runs(int64_t text, int64_t begin, int64_t end) const;
    TensorView keys(int64_t layer, Run const& run) const;
    TensorView values(int64_t layer, Run const& run) const;

  private:
    void change();
    TensorView pool(int64_t number) const;
    int32_t* row_of(int64_t text) { return table_.data() + text * row_pages_; }

    Ops* ops_;
    int64_t capacity_, block_size_, page_size_, kv_heads_, head_dim_;
    int64_t padding_;    ///< tokens beyond the end of a text that may be written
    int64_t row_pages_;  ///< M
    int64_t page_count_, layers_;
    int64_t state_ = 0;
    Buffer memory_;                ///< [layers, 2, pages, P, G, K], then the means [layers, pages, G, K]
    Buffer device_table_;          ///< [rows, M]
    std::vector<int32_t> table_;   ///< the same here; unused places are 0
    std::vector<int64_t> tokens_;  ///< of each text
    std::vector<int64_t> taken_;   ///< its pages
    std::vector<int32_t> free_;    ///< highest number first, so that pages of a text tend to be neighbours
};

}  // namespace perigee
