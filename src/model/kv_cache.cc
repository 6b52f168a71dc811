#include "model/kv_cache.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>

#include "kernels/decode/scratch.h"
#include "kernels/limits.h"

namespace perigee {

namespace {

constexpr int64_t kFullBlock = 256;  ///< without block-sparse layers

int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }

}  // namespace

int64_t block_size_of(std::span<Selection const> selections) {
    int64_t size = 0;
    for (Selection const& selection : selections) {
        auto const budget = budget_of(selection);
        if (!budget) continue;
        if (size != 0 && size != budget->block_size)
            fail(Category::config, "a cache for layers with blocks of {} and of {}", size, budget->block_size);
        size = budget->block_size;
    }
    return size != 0 ? size : kFullBlock;
}

int64_t page_size_of(int64_t block_size) {
    constexpr int64_t kMost = 512, kLeast = 128;
    if (block_size <= kMost) return block_size;
    for (int64_t size = kMost; size >= kLeast; --size)
        if (block_size % size == 0) return size;
    return block_size;
}

bool KvCache::serves(Ops& ops, ModelOptions const& model) {
    if (model.key_conv > 0) return false;
    return ops.device().is_host() || kernels::attention_takes_head(model.head_size());
}

int64_t KvCache::page_bytes(Ops& ops, ModelOptions const& model, MeshShape const& mesh, int64_t page_size) {
    int64_t const row = model.kv_heads() / mesh.tp * model.head_size() * size_of(ops.compute_dtype());
    return model.num_hidden_layers * (2 * page_size + 1) * row;
}

int64_t KvCache::decode_bytes(Ops& ops, ModelOptions const& model, MeshShape const& mesh, CacheRoom const& room) {
    if (ops.device().is_host()) return 0;
    int64_t const blocks = ceil_div(room.tokens + mesh.tp - 1, room.block_size);
    int64_t const texts = ceil_div(room.texts, mesh.tp) * mesh.tp, heads = model.num_attention_heads / mesh.tp;
    size_t const attend =
        decode::attend_floats(texts, heads, model.head_size(), decode::most_splits(blocks, room.block_size));
    return static_cast<int64_t>(sizeof(float) * std::max(attend, decode::select_floats(texts, heads, blocks)));
}

int64_t KvCache::pages_within(int64_t bytes, Ops& ops, ModelOptions const& model, MeshShape const& mesh,
                              CacheRoom const& room) {
    int64_t const page =
        page_bytes(ops, model, mesh, room.page_size > 0 ? room.page_size : page_size_of(room.block_size));
    return std::max<int64_t>(1, (bytes - decode_bytes(ops, model, mesh, room)) / page);
}

KvCache::KvCache(Ops& ops, ModelOptions const& model, MeshShape const& mesh, CacheRoom const& room)
    : ops_(&ops),
      capacity_(room.tokens),
      block_size_(room.block_size),
      page_size_(room.page_size > 0 ? room.page_size : page_size_of(room.block_size)),
      kv_heads_(model.kv_heads() / mesh.tp),
      head_dim_(model.head_size()),
      padding_(mesh.tp - 1),
      layers_(model.num_hidden_layers),
      tokens_(static_cast<size_t>(room.texts)),
      taken_(static_cast<size_t>(room.texts)) {
    PERIGEE_CHECK(room.tokens > 0 && room.texts > 0 && block_size_ > 0 && block_size_ % page_size_ == 0,
                  "a cache of {} texts of {} tokens with blocks of {} in pages of {}", room.texts, room.tokens,
                  block_size_, page_size_);
    row_pages_ = ceil_div(capacity_ + padding_, block_size_) * (block_size_ / page_size_);
    page_count_ = room.pages > 0 ? room.pages : room.texts * row_pages_;
    memory_ = Buffer(ops.device(), static_cast<size_t>(page_count_ * page_bytes(ops, model, mesh, page_size_)));
    table_.resize(static_cast<size_t>(ceil_div(room.texts, mesh.tp) * mesh.tp * row_pages_));
    device_table_ = Buffer(ops.device(), table_.size() * sizeof(int32_t));
    ops.upload({static_cast<std::byte*>(device_table_.data()), DType::i32, {std::ssize(table_)}}, table_.data());
    free_.resize(static_cast<size_t>(page_count_));
    std::iota(free_.rbegin(), free_.rend(), 0);
    change();
}

void KvCache::change() {
    static std::atomic<int64_t> states = 0;
    state_ = ++states;
}

bool KvCache::make_room(int64_t text, int64_t tokens) {
    PERIGEE_CHECK(0 <= tokens && tokens <= capacity_, "{} tokens in a cache for {}", tokens, capacity_);
    int64_t& taken = taken_[static_cast<size_t>(text)];
    int64_t const more = ceil_div(tokens + padding_, page_size_) - taken;
    if (more <= 0) return true;
    if (more > free_pages()) return false;
    change();
    for (int64_t i = 0; i < more; ++i, free_.pop_back()) row_of(text)[taken++] = free_.back();
    TensorView const all(static_cast<std::byte*>(device_table_.data()), DType::i32, {std::ssize(table_)});
    ops_->upload(all.rows(text * row_pages_, text * row_pages_ + taken), row_of(text));
    return true;
}

void KvCache::set_tokens(int64_t tokens, int64_t text) {
    PERIGEE_CHECK(0 <= tokens && tokens <= taken_[static_cast<size_t>(text)] * page_size_ && tokens <= capacity_,
                  "{} tokens in a cache for {}", tokens, capacity_);
    tokens_[static_cast<size_t>(text)] = tokens;
    change();
}

void KvCache::clear(int64_t text) {
    int64_t& taken = taken_[static_cast<size_t>(text)];
    free_.insert(free_.end(), row_of(text), row_of(text) + taken);
    std::ranges::sort(free_, std::greater());
    taken = tokens_[static_cast<size_t>(text)] = 0;
    change();
}

void KvCache::take_over(KvCache const& from) {
    PERIGEE_CHECK(from.texts() == texts() && from.block_size_ == block_size_ && from.page_size_ == page_size_,
                  "a cache of {} texts takes over one of {}", texts(), from.texts());
    for (int64_t text = 0; text < texts(); ++text) {
        clear(text);
        int64_t const tokens = from.tokens(text);
        PERIGEE_CHECK(make_room(text, tokens), "{} tokens with {} free pages", tokens, free_pages());
        for (int64_t layer = 0; layer < layers_; ++layer) {
            CachePages const to = pages(layer, text, text + 1), old = from.pages(layer, text, text + 1);
            for (int64_t page = 0; page < taken_[static_cast<size_t>(text)]; ++page) {
                int64_t const there = row_of(text)[page];
                int64_t const here = from.table_[static_cast<size_t>(text * from.row_pages_ + page)];
                if (page * page_size_ >= tokens) break;
                ops_->copy(to.k_NPGK.rows(there, there + 1), old.k_NPGK.rows(here, here + 1));
                ops_->copy(to.v_NPGK.rows(there, there + 1), old.v_NPGK.rows(here, here + 1));
                ops_->copy(to.means_NGK.rows(there, there + 1), old.means_NGK.rows(here, here + 1));
            }
        }
        set_tokens(tokens, text);
    }
}

TensorView KvCache::pool(int64_t number) const {
    Shape const shape{page_count_, page_size_, kv_heads_, head_dim_};
    DType const dtype = ops_->compute_dtype();
    auto* const data = static_cast<std::byte*>(memory_.data());
    return {data + number * shape.size() * size_of(dtype), dtype, shape};
}

CachePages KvCache::pages(int64_t layer, int64_t begin, int64_t end) const {
    TensorView const k = pool(2 * layer), first_mean = pool(2 * layers_);
    Shape const means{page_count_, kv_heads_, head_dim_};
    ConstView const table(static_cast<std::byte const*>(device_table_.data()), DType::i32,
                          {std::ssize(table_) / row_pages_, row_pages_});
    return {.k_NPGK = k,
            .v_NPGK = pool(2 * layer + 1),
            .means_NGK = {first_mean.data + layer * means.size() * size_of(k.dtype), k.dtype, means},
            .table_SM = table.rows(begin, end),
            .block_size = block_size_};
}

std::vector<KvCache::Run> KvCache::runs(int64_t text, int64_t begin, int64_t end) const {
    std::vector<Run> runs;
    int32_t const* const pages = table_.data() + text * row_pages_;
    for (int64_t token = begin; token < end;) {
        int64_t const row = pages[token / page_size_] * page_size_ + token % page_size_;
        int64_t const next = std::min(end, (token / page_size_ + 1) * page_size_);
        if (!runs.empty() && runs.back().row + token - runs.back().begin == row)
            runs.back().end = next;
        else
            runs.push_back({token, next, row});
        token = next;
    }
    return runs;
}

TensorView KvCache::keys(int64_t layer, Run const& run) const {
    return pool(2 * layer)
        .reshape({page_count_ * page_size_, kv_heads_, head_dim_})
        .rows(run.row, run.row + run.end - run.begin);
}
TensorView KvCache::values(int64_t layer, Run const& run) const {
    return pool(2 * layer + 1)
        .reshape({page_count_ * page_size_, kv_heads_, head_dim_})
        .rows(run.row, run.row + run.end - run.begin);
}

}  // namespace perigee
