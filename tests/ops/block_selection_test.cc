// Rules that select blocks by position, against their definition; all on the kernels of the gate.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "attention_case.h"

namespace perigee {
namespace {

using namespace testing;

/// visit(position in the document, head, slots) for every row of a choice, up to the first that is wrong.
template <class Visit>
void each_row(std::vector<int32_t> const& chosen, ReferenceProblem const& p, int64_t slots, Visit visit) {
    for (size_t d = 1; d < p.cu_seqlens.size(); ++d)
        for (int64_t t = p.cu_seqlens[d - 1]; t < p.cu_seqlens[d]; ++t)
            for (int64_t h = 0; h < p.heads; ++h) {
                auto const first = chosen.begin() + (t * p.heads + h) * slots;
                visit(t - p.cu_seqlens[d - 1], h, std::vector<int32_t>(first, first + slots));
                if (::testing::Test::HasFatalFailure()) return;
            }
}

TEST(NearestBlocks, AreTheBlocksBefore) {
    auto const p = make_problem({.cu_seqlens = kRagged});
    auto const chosen = HostAttention<float>().select(p, NearestBlocks{.block_size = 16, .top_k = 4});
    each_row(chosen, p, 3, [](int64_t position, int64_t, std::vector<int32_t> const& slots) {
        std::vector<int32_t> expected;
        for (int64_t block = 0; block < position / 16; ++block)
            if (block + 3 >= position / 16) expected.push_back(static_cast<int32_t>(block));
        expected.resize(3, -1);
        ASSERT_EQ(slots, expected) << position;
    });
}

TEST(SinkNearestBlocks, AreTheFirstAndTheBlocksBefore) {
    auto const p = make_problem({.cu_seqlens = kRagged});
    for (int64_t const top_k : {2, 3, 5}) {
        auto const chosen = HostAttention<float>().select(p, SinkNearestBlocks{.block_size = 16, .top_k = top_k});
        each_row(chosen, p, top_k - 1, [&](int64_t position, int64_t, std::vector<int32_t> const& slots) {
            std::vector<int32_t> expected;
            for (int64_t block = 0; block < position / 16; ++block) {
                int64_t const nearer = position / 16 - 1 - block;  // past blocks between this one and the local block
                if (block == 0 || nearer < top_k - 2) expected.push_back(static_cast<int32_t>(block));
            }
            expected.resize(static_cast<size_t>(top_k - 1), -1);
            ASSERT_EQ(slots, expected) << "top_k " << top_k << ", position " << position;
        });
    }
}

TEST(RandomBlocks, AreAsManyAsThereAreAndAllDifferent) {
    auto const p = make_problem({.cu_seqlens = kRagged});
    auto const chosen = HostAttention<float>().select(p, RandomBlocks{.block_size = 16, .top_k = 6, .seed = 3});
    each_row(chosen, p, 5, [](int64_t position, int64_t, std::vector<int32_t> const& slots) {
        int64_t const past = position / 16, count = std::min<int64_t>(past, 5);
        std::set<int32_t> const blocks(slots.begin(), slots.begin() + count);
        ASSERT_EQ(std::ssize(blocks), count) << position;
        ASSERT_TRUE(std::is_sorted(slots.begin(), slots.begin() + count));
        ASSERT_TRUE(blocks.empty() || (*blocks.begin() >= 0 && *blocks.rbegin() < past));
        ASSERT_TRUE(std::all_of(slots.begin() + count, slots.end(), [](int32_t s) { return s == -1; }));
    });
}

TEST(RandomBlocks, AreUniformOverAllSets) {
    // The last block of 6: each of the 10 sets of 2 of 5 past blocks, over many heads and positions.
    auto const p = make_problem({.cu_seqlens = {0, 6 * 256}, .heads = 16, .kv_heads = 1, .head_dim = 2});
    auto const chosen = HostAttention<float>().select(p, RandomBlocks{.block_size = 256, .top_k = 3, .seed = 11});
    std::map<std::vector<int32_t>, double> counts;
    each_row(chosen, p, 2, [&](int64_t position, int64_t, std::vector<int32_t> const& slots) {
        if (position / 256 == 5) ++counts[slots];
    });
    ASSERT_EQ(counts.size(), 10u);
    double chi_square = 0;
    double const expected = 256 * 16 / 10.0;
    for (auto const& [set, count] : counts) chi_square += (count - expected) * (count - expected) / expected;
    EXPECT_LT(chi_square, 27.9);  // 9 degrees of freedom: one seed in a thousand is above
}

TEST(RandomBlocks, DependOnSeedLayerHeadAndPosition) {
    auto const p = make_problem({.cu_seqlens = {0, 640}});
    HostAttention<float> host;
    RandomBlocks const rule{.block_size = 16, .top_k = 3, .seed = 1, .layer = 2};
    auto const chosen = host.select(p, rule);
    EXPECT_EQ(HostAttention<double>(3).select(p, rule), chosen);
    EXPECT_NE(host.select(p, RandomBlocks{.block_size = 16, .top_k = 3, .seed = 2, .layer = 2}), chosen);
    EXPECT_NE(host.select(p, RandomBlocks{.block_size = 16, .top_k = 3, .seed = 1, .layer = 3}), chosen);
    auto const row = [&](int64_t t, int64_t h) {
        auto const first = chosen.begin() + (t * p.heads + h) * 2;
        return std::vector<int32_t>(first, first + 2);
    };
    std::set<std::vector<int32_t>> by_head, by_position;
    for (int64_t h = 0; h < 4; ++h) by_head.insert(row(630, h));
    for (int64_t t = 624; t < 640; ++t) by_position.insert(row(t, 0));
    EXPECT_GT(by_head.size(), 1u);
    EXPECT_GT(by_position.size(), 4u);
}

TEST(SelectionByPosition, AttendsWhatTheReferenceAttends) {
    auto const p = make_problem({.cu_seqlens = kRagged});
    for (Selection const& selection : {Selection(NearestBlocks{.block_size = 16, .top_k = 4}),
                                       Selection(SinkNearestBlocks{.block_size = 16, .top_k = 4}),
                                       Selection(RandomBlocks{.block_size = 16, .top_k = 4})}) {
        HostAttention<double> host;
        auto const chosen = host.select(p, selection);
        EXPECT_LT(worst_error(host.attend(p, selection, chosen), reference_moba(p, 16, chosen)), kTolerance64);
    }
}

}  // namespace
}  // namespace perigee
