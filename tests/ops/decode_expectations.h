// What decoding must do on every Ops.
#pragma once

#include <gtest/gtest.h>

#include "ops/decode_case.h"

namespace perigee::testing {

/// Positions at the first token of a block, its second and its last, in the first block, before any and beyond many.
inline std::vector<int32_t> edge_lengths(int64_t block) {
    auto const b = static_cast<int32_t>(block);
    return {0, 1, b - 1, b, b + 1, 2 * b - 1, 2 * b, 5 * b, 5 * b + 1, 6 * b - 1, -1, 9 * b + b / 2};
}

inline std::vector<DecodeCase> decode_cases() {
    std::vector<DecodeCase> cases;
    for (int64_t const block : {16, 32, 100, 256, 512})
        for (int64_t const page : {block, block / 4}) {
            DecodeCase c{.lengths = edge_lengths(block)};
            c.selection = MobaOptions{.block_size = block, .top_k = 3};
            c.page_size = page, c.block_size = block;
            cases.push_back(c);
        }
    for (auto const& [heads, kv_heads] : {std::pair<int64_t, int64_t>{2, 2}, {8, 2}, {8, 1}, {40, 1}, {128, 1}})
        for (int64_t const dim : {64, 128})
            for (MobaSelection const per : {MobaSelection::per_head, MobaSelection::per_group}) {
                DecodeCase c{.lengths = edge_lengths(32)};
                c.selection = MobaOptions{.block_size = 32, .top_k = 4, .selection = per};
                c.heads = heads, c.kv_heads = kv_heads, c.head_dim = dim;
                c.scale = 1 / std::sqrt(static_cast<double>(dim));
                cases.push_back(c);
            }
    return cases;
}

inline std::vector<Selection> decode_rules() {
    std::vector<Selection> rules;
    for (int64_t const k : {1, 2, 3, 9, 17})
        for (MobaSelection const per : {MobaSelection::per_head, MobaSelection::per_group})
            for (bool const previous : {false, true})
                rules.push_back(
                    MobaOptions{.block_size = 32, .top_k = k, .force_previous = previous, .selection = per});
    for (int64_t const k : {3, 9, 17})
        for (MobaSelection const per : {MobaSelection::per_head, MobaSelection::per_group})
            for (bool const previous : {false, true})
                rules.push_back(MobaOptions{
                    .block_size = 32, .top_k = k, .force_previous = previous, .force_first = true, .selection = per});
    rules.push_back(NearestBlocks{.block_size = 32, .top_k = 3});
    rules.push_back(SinkNearestBlocks{.block_size = 32, .top_k = 3});
    rules.push_back(RandomBlocks{.block_size = 32, .top_k = 3});
    return rules;
}
inline DecodeCase with_rule(Selection const& rule) {
    DecodeCase c{.lengths = edge_lengths(32)};
    c.lengths.push_back(700);
    c.selection = rule;
    return c;
}

inline std::vector<int32_t> row(std::vector<int32_t> const& chosen_SHS, size_t s, size_t sequences) {
    size_t const width = chosen_SHS.size() / sequences;
    return {chosen_SHS.begin() + static_cast<int64_t>(s * width),
            chosen_SHS.begin() + static_cast<int64_t>((s + 1) * width)};
}

/// The largest relative error of any sequence's attention.
inline double attention_error(DecodeCase const& c, std::vector<int32_t> const& chosen, Values const& o, bool all) {
    size_t const S = c.lengths.size(), width = static_cast<size_t>(c.heads * c.head_dim);
    double worst = 0;
    for (size_t s = 0; s < S; ++s) {
        Values const its(o.begin() + static_cast<int64_t>(s * width),
                         o.begin() + static_cast<int64_t>((s + 1) * width));
        Values const want = c.lengths[s] < 0 ? Values(width) : expected_attention(c, s, row(chosen, s, S), all);
        worst = std::max(worst, relative_error(its, want));
    }
    return worst;
}

/// Choices are training's on the same Ops in every slot; attention, block-sparse and full, is the oracle's.
inline void expect_training(Ops& ops, DecodeCase const& c, double tolerance) {
    SCOPED_TRACE(fmt::format("B {} P {} heads {}/{} of {} rule {}", c.block_size, c.page_size, c.heads, c.kv_heads,
                             c.head_dim, c.selection.index()));
    DecodeLab lab(ops, c);
    lab.pool();
    lab.append();
    auto const chosen = lab.select();
    size_t const S = c.lengths.size();
    for (size_t s = 0; s < S; ++s) {
        auto const its = row(chosen, s, S);
        if (c.lengths[s] < 0)
            ASSERT_EQ(std::ranges::count(its, -1), std::ssize(its));
        else
            ASSERT_EQ(its, lab.training_select(s)) << "position " << c.lengths[s];
    }
    Values const sparse = lab.attend(false);
    EXPECT_LT(attention_error(c, chosen, sparse, false), tolerance);
    EXPECT_LT(attention_error(c, chosen, lab.attend(true), true), tolerance);
    EXPECT_EQ(lab.select_and_attend(), std::pair(chosen, sparse)) << "as one operation";
}

/// Equal numbers, or NaN in the same places.
inline bool same(Values const& a, Values const& b) {
    return std::ranges::equal(a, b, [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

/// The operation that selects and attends leaves the bits of the two, means that it pools included, and attends other
/// blocks than it selects where it is told to.
inline void expect_both_as_one(Ops& ops, DecodeCase const& c) {
    DecodeLab two(ops, c), one(ops, c);
    for (DecodeLab* const lab : {&two, &one}) {
        lab->append();
        lab->forget_means();  // also those of blocks that the newest tokens complete
        lab->pool();
    }
    Values const before = two.means();
    auto const chosen = two.select();
    EXPECT_EQ(one.select_and_attend(/*pools=*/true), std::pair(chosen, two.attend(false, /*pools=*/true)));
    EXPECT_TRUE(same(one.means(), two.means()));
    EXPECT_FALSE(same(one.means(), before)) << "no block is completed";
    DecodeCase nearest = c;
    nearest.selection = NearestBlocks{.block_size = c.block_size, .top_k = budget_of(c.selection)->top_k};
    DecodeLab other(ops, nearest);
    other.pool();
    other.append();
    EXPECT_NE(other.select(), chosen);
    EXPECT_EQ(one.select_and_attend(false, other.chosen_SHS), std::pair(chosen, other.attend(false)));
}

/// append() writes the newest key and value of every sequence, and changes no other row.
inline void expect_append_to_write(Ops& ops) {
    for (int64_t const block : {32, 100}) {
        DecodeCase c{.lengths = edge_lengths(block)};
        c.selection = MobaOptions{.block_size = block, .top_k = 3};
        c.page_size = block / 4, c.block_size = block;
        DecodeLab lab(ops, c);
        Values k = lab.keys(), v = lab.values();
        int64_t const width = c.kv_heads * c.head_dim;
        for (size_t s = 0; s < c.lengths.size(); ++s) {
            if (c.lengths[s] < 0) continue;
            SequenceValues const x = values_of(c, s);
            std::copy_n(x.k_TGK.end() - width, width, k.begin() + lab.newest_row(s) * width);
            std::copy_n(x.v_TGK.end() - width, width, v.begin() + lab.newest_row(s) * width);
        }
        EXPECT_NE(lab.keys(), k);
        EXPECT_NE(lab.values(), v);
        lab.append();
        EXPECT_EQ(lab.keys(), k);
        EXPECT_EQ(lab.values(), v);
    }
}

/// A rank with a part of the heads selects the same blocks as the whole model.
inline void expect_first_head_to_count(Ops& ops) {
    DecodeCase c = with_rule(RandomBlocks{.block_size = 32, .top_k = 3});
    auto const chosen = [&] {
        DecodeLab lab(ops, c);
        auto const all = lab.select();
        for (size_t s = 0; s < c.lengths.size(); ++s)
            if (c.lengths[s] >= 0) {
                EXPECT_EQ(row(all, s, c.lengths.size()), lab.training_select(s)) << c.lengths[s];
            }
        return all;
    };
    auto const first = chosen();
    c.first_head = 3;
    EXPECT_NE(chosen(), first);
}

/// Token by token, append() (or attention, if `attends`) makes bitwise the means that pool() makes.
inline void expect_means_of_appends(Ops& ops, bool attends, int32_t block = 32) {
    int32_t const tokens = 3 * block;
    DecodeCase whole{.lengths = {tokens}, .page_size = 16};
    whole.selection = MobaOptions{.block_size = block, .top_k = 3};
    whole.block_size = block;
    DecodeLab pooled(ops, whole), appended(ops, whole);
    pooled.pool();
    for (int32_t t = 0; t < tokens; ++t) {
        if (attends) {
            appended.set_lengths({t});
            if (t % 16 == 15 || t < 16) appended.attend(true, /*pools=*/true);
            continue;
        }
        // The newest token of a sequence of t + 1 is token t of the longer one.
        SequenceValues const x = values_of(whole, 0);
        int64_t const width = whole.kv_heads * whole.head_dim;
        Lab lab(ops);
        Shape const shape{1, whole.kv_heads, whole.head_dim};
        Values const k(x.k_TGK.begin() + t * width, x.k_TGK.begin() + (t + 1) * width);
        Values const v(x.v_TGK.begin() + t * width, x.v_TGK.begin() + (t + 1) * width);
        ops.kv_append({.pages = appended.pages(),
                       .k_SGK = lab.compute(shape, k),
                       .v_SGK = lab.compute(shape, v),
                       .lengths_S = lab.ids({t})});
    }
    Values const want = pooled.means(), found = appended.means();
    int64_t written = 0;
    for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_TRUE(found[i] == want[i] || (std::isnan(found[i]) && std::isnan(want[i]))) << i;
        written += !std::isnan(want[i]);
    }
    EXPECT_EQ(written, 3 * whole.kv_heads * whole.head_dim) << "blocks of " << block;
}

inline void expect_covering_equals_full(Ops& ops) {
    for (int64_t const block : {32, 200, 512}) {
        DecodeCase c{.lengths = edge_lengths(block)};
        c.selection = MobaOptions{.block_size = block, .top_k = 10};
        c.page_size = c.block_size = block;
        DecodeLab lab(ops, c);
        lab.pool();
        lab.append();
        lab.select();
        EXPECT_EQ(lab.attend(false), lab.attend(true)) << "blocks of " << block;
    }
}

inline void expect_independence(Ops& ops) {
    DecodeCase const one{.lengths = {333}, .page_size = 16};
    DecodeLab lab(ops, one);
    lab.pool();
    lab.append();
    auto const chosen = lab.select();
    Values const sparse = lab.attend(false), full = lab.attend(true);
    for (uint64_t const page_seed : {2, 3})
        for (std::vector<int32_t> const& lengths : {std::vector<int32_t>{333}, {333, 5, 90}, {333, -1, 700, 333}}) {
            DecodeCase other = one;
            other.lengths = lengths, other.page_seed = page_seed;
            DecodeLab mates(ops, other);
            mates.pool();
            mates.append();
            auto const first = [&](auto const& values) {
                auto const size = std::ssize(values) / std::ssize(lengths);
                return std::vector(values.begin(), values.begin() + size);
            };
            EXPECT_EQ(first(mates.select()), chosen);
            EXPECT_EQ(first(mates.attend(false)), sparse);
            EXPECT_EQ(first(mates.attend(true)), full);
        }
}

/// The expectations above fail where something is wrong.
inline void expect_damage_to_show(Ops& ops, double tolerance) {
    DecodeCase const c{.lengths = {333}, .page_size = 16};
    auto const error = [&](auto damage, bool all) {
        DecodeLab lab(ops, c);
        lab.pool();
        lab.append();
        auto const chosen = lab.select();
        damage(lab);
        return attention_error(c, chosen, lab.attend(all), all);
    };
    auto const nothing = [](DecodeLab&) {};
    auto const swapped = [](DecodeLab& lab) {
        std::vector<int32_t> table = lab.table;
        std::swap(table[0], table[333 / 16]);  // of the first block and the newest token
        lab.set_table(table);
    };
    auto const neighbour = [](DecodeLab& lab) { lab.set_lengths({334}); };
    auto const shorter = [](DecodeLab& lab) { lab.set_lengths({332}); };
    for (bool const all : {false, true}) {
        EXPECT_LT(error(nothing, all), tolerance);
        EXPECT_GT(error(swapped, all), 10 * tolerance) << "wrong page";
        EXPECT_GT(error(neighbour, all), 10 * tolerance) << "unmasked neighbour";
        EXPECT_GT(error(shorter, all), 4 * tolerance) << "the newest token is missing";
    }
    DecodeLab stale(ops, c);
    stale.pool();
    stale.append();
    auto const chosen = stale.select();
    EXPECT_EQ(chosen, stale.training_select(0));
    ops.fill_zero(stale.means_NGK);
    EXPECT_NE(stale.select(), chosen) << "stale means";
}

}  // namespace perigee::testing
