// A batch of sequences in a cache of pages, on any Ops, and what decoding finds there.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/gpu_case.h"

namespace perigee::testing {

struct DecodeCase {
    std::vector<int32_t> lengths;                                     ///< tokens before the newest; -1: no sequence
    Selection selection = MobaOptions{.block_size = 32, .top_k = 3};  ///< block size also of full attention
    int64_t heads = 4, kv_heads = 2, head_dim = 64;
    int64_t page_size = 32;
    int64_t block_size = 32;
    uint64_t page_seed = 1;  ///< order of the pages
    uint64_t seed = 5;       ///< of sequence s: seed + s
    double scale = 0.125;
    int64_t first_head = 0;  ///< index of the first head within the whole model
};

/// The numbers of one sequence, all of which bf16 holds.
struct SequenceValues {
    Values q_HK, k_TGK, v_TGK;
};
/// Multiples of 1/32 between -2 and 2, as a hash of seed and place gives them.
inline Values hashed_numbers(int64_t count, uint64_t seed) {
    Values values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
        uint64_t x = (seed << 32) + i + 0x9e3779b97f4a7c15;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
        x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
        values[i] = static_cast<double>((x ^ (x >> 31)) % 129) / 32 - 2;
    }
    return values;
}
inline SequenceValues values_of(DecodeCase const& c, size_t s) {
    int64_t const tokens = c.lengths[s] + 1;
    uint64_t const seed = 100 * (c.seed + s);
    return {hashed_numbers(c.heads * c.head_dim, seed), hashed_numbers(tokens * c.kv_heads * c.head_dim, seed + 1),
            hashed_numbers(tokens * c.kv_heads * c.head_dim, seed + 2)};
}

/// The cache with all tokens of all sequences but the newest.
class DecodeLab {
  public:
    DecodeLab(Ops& ops, DecodeCase const& c) : ops(ops), lab_(ops), c_(c) {
        int64_t const longest = std::ranges::max(c.lengths) + 1;
        int64_t const blocks = (longest + c.block_size - 1) / c.block_size;
        M_ = blocks * (c.block_size / c.page_size);
        S_ = std::ssize(c.lengths);
        int64_t const pages = S_ * M_ + 3;
        std::vector<int32_t> order(static_cast<size_t>(pages));
        std::iota(order.begin(), order.end(), 0);
        Philox const random(c.page_seed, Purpose::mock_data);
        for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i, i)]);
        table.assign(order.begin(), order.begin() + S_ * M_);
        Shape const pool{pages, c.page_size, c.kv_heads, c.head_dim};
        // Rows that belong to no token are far from zero, so that reading one shows.
        Values k(static_cast<size_t>(pool.size()), 64), v(k.size(), 64);
        for (size_t s = 0; s < c.lengths.size(); ++s) fill(s, k, v);
        k_NPGK = lab_.compute(pool, k), v_NPGK = lab_.compute(pool, v);
        means_NGK = lab_.compute({pages, c.kv_heads, c.head_dim});
        table_SM = lab_.ids(table).reshape({S_, M_});
        lengths_S = lab_.ids(c.lengths);
    }

    CachePages pages() const { return {k_NPGK, v_NPGK, means_NGK, table_SM, c_.block_size}; }
    /// Means of all blocks that are complete without the newest token.
    void pool() {
        for (int64_t s = 0; s < S_; ++s) {
            int64_t const complete = c_.lengths[static_cast<size_t>(s)] / c_.block_size;
            CachePages one = pages();
            one.table_SM = one.table_SM.rows(s, s + 1);
            if (complete > 0) ops.pool_blocks({.pages = one, .first = 0, .count = complete});
        }
    }
    void append() {
        Values k, v;
        for (size_t s = 0; s < c_.lengths.size(); ++s) {
            auto const width = static_cast<size_t>(c_.kv_heads * c_.head_dim);
            SequenceValues const x =
                c_.lengths[s] >= 0 ? values_of(c_, s) : SequenceValues{{}, Values(width), Values(width)};
            k.insert(k.end(), x.k_TGK.end() - static_cast<int64_t>(width), x.k_TGK.end());
            v.insert(v.end(), x.v_TGK.end() - static_cast<int64_t>(width), x.v_TGK.end());
        }
        Shape const shape{S_, c_.kv_heads, c_.head_dim};
        ops.kv_append({.pages = pages(),
                       .k_SGK = lab_.compute(shape, k),
                       .v_SGK = lab_.compute(shape, v),
                       .lengths_S = lengths_S});
    }
    void forget_means() {
        std::vector<std::byte> const nans(static_cast<size_t>(means_NGK.bytes()), std::byte{0xff});
        ops.upload(means_NGK, nans.data());
    }
    /// Overwrites the lengths that the operations are given.
    void set_lengths(std::vector<int32_t> const& lengths) { ops.upload(lengths_S, lengths.data()); }
    void set_table(std::vector<int32_t> const& pages) {
        ops.upload({const_cast<std::byte*>(table_SM.data), DType::i32, table_SM.shape}, pages.data());
    }

    std::vector<int32_t> select() {
        int64_t const slots = budget_of(c_.selection)->slots();
        TensorView const chosen = lab_.ids(std::vector<int32_t>(static_cast<size_t>(S_ * c_.heads * slots), -777));
        chosen_SHS = chosen.reshape({S_, c_.heads, slots});
        ops.decode_select({.chosen_SHS = chosen_SHS,
                           .q_SHK = queries(),
                           .pages = pages(),
                           .lengths_S = lengths_S,
                           .selection = c_.selection,
                           .first_head = c_.first_head});
        return ints(chosen_SHS);
    }
    Values attend(bool all, bool pools = false) {
        TensorView const o = lab_.compute({S_, c_.heads, c_.head_dim});
        Attended attended = FullAttention{};
        if (!all) attended = BlockSparse{.budget = *budget_of(c_.selection), .chosen_THS = chosen_SHS};
        ops.decode_attend({.o_SHK = o,
                           .q_SHK = queries(),
                           .pages = pages(),
                           .lengths_S = lengths_S,
                           .scale = c_.scale,
                           .attended = attended,
                           .pools = pools});
        return lab_.values(o);
    }
    /// The operation that is both: its choice and its attention.
    std::pair<std::vector<int32_t>, Values> select_and_attend(bool pools = false, TensorView attended_SHS = {}) {
        int64_t const slots = budget_of(c_.selection)->slots();
        TensorView const chosen = lab_.ids(std::vector<int32_t>(static_cast<size_t>(S_ * c_.heads * slots), -777))
                                      .reshape({S_, c_.heads, slots}),
                         o = lab_.compute({S_, c_.heads, c_.head_dim}), q = queries();
        ops.decode_sparse(
            {.select = {.chosen_SHS = chosen,
                        .q_SHK = q,
                        .pages = pages(),
                        .lengths_S = lengths_S,
                        .selection = c_.selection,
                        .first_head = c_.first_head},
             .attend = {.o_SHK = o,
                        .q_SHK = q,
                        .pages = pages(),
                        .lengths_S = lengths_S,
                        .scale = c_.scale,
                        .attended = BlockSparse{.budget = *budget_of(c_.selection),
                                                .chosen_THS = attended_SHS.empty() ? chosen : attended_SHS},
                        .pools = pools}});
        return {ints(chosen), lab_.values(o)};
    }
    Values means() { return lab_.values(means_NGK); }
    Values keys() { return lab_.values(k_NPGK); }
    Values values() { return lab_.values(v_NPGK); }
    /// Row of sequence s's newest token in keys() and values(); a row has G K values.
    int64_t newest_row(size_t s) const {
        int32_t const t = c_.lengths[s];
        int64_t const page = table[s * static_cast<size_t>(M_) + static_cast<size_t>(t / c_.page_size)];
        return page * c_.page_size + t % c_.page_size;
    }

    /// The choice of training's operation for sequence s.
    std::vector<int32_t> training_select(size_t s) {
        SequenceValues const x = values_of(c_, s);
        int64_t const tokens = c_.lengths[s] + 1, slots = budget_of(c_.selection)->slots();
        TensorView const chosen =
            lab_.ids(std::vector<int32_t>(static_cast<size_t>(c_.heads * slots), -777)).reshape({1, c_.heads, slots});
        std::vector<int32_t> const borders = {0, static_cast<int32_t>(tokens)};
        ops.select_blocks({.chosen_THS = chosen,
                           .q_THK = lab_.compute({1, c_.heads, c_.head_dim}, x.q_HK),
                           .k_TGK = lab_.compute({tokens, c_.kv_heads, c_.head_dim}, x.k_TGK),
                           .cu_seqlens = borders,
                           .selection = c_.selection,
                           .query_begin = tokens - 1,
                           .first_head = c_.first_head});
        return ints(chosen);
    }

    Ops& ops;
    std::vector<int32_t> table;
    TensorView k_NPGK, v_NPGK, means_NGK, lengths_S, chosen_SHS;
    ConstView table_SM;

  private:
    void fill(size_t s, Values& k, Values& v) const {
        if (c_.lengths[s] < 0) return;
        SequenceValues const x = values_of(c_, s);
        int64_t const width = c_.kv_heads * c_.head_dim;
        for (int64_t t = 0; t < c_.lengths[s]; ++t) {
            int64_t const page = table[s * static_cast<size_t>(M_) + static_cast<size_t>(t / c_.page_size)];
            int64_t const row = page * c_.page_size + t % c_.page_size;
            std::copy_n(x.k_TGK.begin() + t * width, width, k.begin() + row * width);
            std::copy_n(x.v_TGK.begin() + t * width, width, v.begin() + row * width);
        }
    }
    TensorView queries() {
        Values q;
        for (size_t s = 0; s < c_.lengths.size(); ++s) {
            auto const width = static_cast<size_t>(c_.heads * c_.head_dim);
            Values const its = c_.lengths[s] >= 0 ? values_of(c_, s).q_HK : Values(width, 1);
            q.insert(q.end(), its.begin(), its.end());
        }
        return lab_.compute({S_, c_.heads, c_.head_dim}, q);
    }
    std::vector<int32_t> ints(ConstView view) {
        std::vector<int32_t> values(static_cast<size_t>(view.size()));
        ops.download(values.data(), view);
        return values;
    }

    Lab lab_;
    DecodeCase c_;
    int64_t M_, S_;
};

/// Attention of the newest token of sequence s in fp64, key by key. `chosen_HS`: of the sequence; all blocks without.
inline Values expected_attention(DecodeCase const& c, size_t s, std::span<int32_t const> chosen_HS, bool all) {
    SequenceValues const x = values_of(c, s);
    int64_t const tokens = c.lengths[s] + 1, K = c.head_dim, G = c.kv_heads, current = (tokens - 1) / c.block_size;
    int64_t const slots = std::ssize(chosen_HS) / c.heads;
    Values o(static_cast<size_t>(c.heads * K));
    for (int64_t h = 0; h < c.heads; ++h) {
        int64_t const g = h / (c.heads / G);
        auto const its = chosen_HS.subspan(static_cast<size_t>(h * slots), static_cast<size_t>(slots));
        double sum = 0;
        for (int64_t t = 0; t < tokens; ++t) {
            int64_t const block = t / c.block_size;
            if (!all && block != current && std::ranges::find(its, static_cast<int32_t>(block)) == its.end()) continue;
            double score = 0;
            for (int64_t i = 0; i < K; ++i)
                score += x.q_HK[static_cast<size_t>(h * K + i)] * x.k_TGK[static_cast<size_t>((t * G + g) * K + i)];
            double const weight = std::exp(score * c.scale);
            sum += weight;
            for (int64_t i = 0; i < K; ++i)
                o[static_cast<size_t>(h * K + i)] += weight * x.v_TGK[static_cast<size_t>((t * G + g) * K + i)];
        }
        for (int64_t i = 0; i < K; ++i) o[static_cast<size_t>(h * K + i)] /= sum;
    }
    return o;
}

}  // namespace perigee::testing
