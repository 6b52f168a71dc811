// Attention shared by context-parallel ranks gives what one rank gives, and shares the work evenly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "parallel/context_case.h"

namespace perigee {
namespace {

using namespace testing;
using ::testing::TestWithParam;

/// Documents that straddle every shard, end inside blocks, and empty ones.
std::vector<int32_t> const kRagged = {0, 1, 1, 34, 66, 195, 195, 640};

std::vector<Selection> selections() {
    return {FullAttention{},
            MobaOptions{.block_size = 16, .top_k = 3},
            MobaOptions{.block_size = 50, .top_k = 2, .force_previous = true},
            MobaOptions{.block_size = 7, .top_k = 4, .selection = MobaSelection::per_group},
            MobaOptions{.block_size = 16, .top_k = 3, .force_previous = true, .selection = MobaSelection::per_group},
            MobaOptions{.block_size = 16, .top_k = 4, .force_first = true},
            NearestBlocks{.block_size = 16, .top_k = 4},
            SinkNearestBlocks{.block_size = 16, .top_k = 4},
            RandomBlocks{.block_size = 16, .top_k = 4, .seed = 7, .layer = 1},
            MobaOptions{.block_size = 32, .top_k = 1}};
}

class ContextAttentionLayouts : public TestWithParam<ContextLayout> {
  protected:
    template <class Real>
    void expect_like_one_rank(AttentionCase const& attention, double tolerance) {
        ReferenceProblem const p = make_problem(attention);
        for (Selection const& selection : selections()) {
            SCOPED_TRACE(std::visit([](auto const& rule) { return rule.kName; }, selection));
            HostAttention<Real> host(1);
            auto const chosen = host.select(p, selection);
            auto const alone = host.attend(p, selection, chosen);
            auto const shared = attend_in_context<Real>(p, selection, GetParam());
            EXPECT_EQ(shared.chosen, chosen);
            EXPECT_LT(worst_error(shared.y, alone), tolerance);
            if (GetParam().ranks == 1) {
                EXPECT_EQ(shared.y, alone);
            }
        }
    }
    /// As many key/value heads as ulysses needs, or one for all.
    AttentionCase heads(std::vector<int32_t> borders, uint64_t seed) const {
        bool const ulysses = GetParam().mode == ContextMode::ulysses;
        int64_t const kv_heads = ulysses ? GetParam().ranks : GetParam().head_groups;
        return {.cu_seqlens = std::move(borders),
                .heads = 2 * kv_heads,
                .kv_heads = kv_heads,
                .head_dim = 16,
                .seed = seed};
    }
};

TEST_P(ContextAttentionLayouts, GiveWhatOneRankGives) {
    expect_like_one_rank<float>(heads(kRagged, 21), 1e-6);
    expect_like_one_rank<double>(heads(kRagged, 22), 1e-12);
    expect_like_one_rank<float>(heads({0, 640}, 23), 1e-6);
}

std::vector<ContextLayout> layouts() {
    std::vector<ContextLayout> result;
    for (int const ranks : PERIGEE_SANITIZED ? std::vector{1, 4} : std::vector{1, 2, 4, 8})
        for (auto const& [mode, zigzag] :
             {std::pair(ContextMode::ulysses, false), {ContextMode::allgather, false}, {ContextMode::allgather, true}})
            result.push_back({ranks, mode, zigzag});
    for (int const ranks : {1, 2, 4})
        for (bool const zigzag : {false, true}) result.push_back({ranks, ContextMode::allgather, zigzag, 3});
    return result;
}
INSTANTIATE_TEST_SUITE_P(Ranks, ContextAttentionLayouts, ::testing::ValuesIn(layouts()));

TEST(ContextAttention, SpreadsManyHeadsPerRank) {
    auto const p = make_problem({.cu_seqlens = kRagged, .heads = 12, .kv_heads = 4, .head_dim = 8, .seed = 24});
    HostAttention<float> host(1);
    for (Selection const& selection : selections()) {
        auto const chosen = host.select(p, selection);
        auto const alone = host.attend(p, selection, chosen);
        for (auto const mode : {ContextMode::ulysses, ContextMode::allgather}) {
            auto const shared = attend_in_context<float>(p, selection, {.ranks = 2, .mode = mode});
            EXPECT_EQ(shared.chosen, chosen);
            EXPECT_LT(worst_error(shared.y, alone), 1e-6);
            if (mode == ContextMode::ulysses) continue;
            auto const in_groups = attend_in_context<float>(p, selection, {.ranks = 2, .mode = mode, .head_groups = 2});
            EXPECT_EQ(in_groups.y, shared.y) << "in groups of heads";
        }
    }
}

TEST(ContextAttention, OfOneRankNeitherCopiesNorTalks) {
    auto const p = make_problem({.cu_seqlens = {0, 64}});
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 1);
    auto const world = make_single_comm();
    for (auto const mode : {ContextMode::ulysses, ContextMode::allgather}) {
        Arena arena(*device);
        ContextAttention const context(
            *ops, *world, {mode, mode}, ContextShard(64, 1, 0),
            {.heads = p.heads, .kv_heads = p.kv_heads, .head_dim = p.head_dim, .scale = 1, .cu_seqlens = p.cu_seqlens},
            arena);
        AttentionActivations const acts = context.allocate(FullAttention{});
        EXPECT_EQ(acts.attended.q_THK.data, acts.local.q_THK.data);
        EXPECT_EQ(acts.attended.o_THK.data, acts.local.o_THK.data);
        int64_t const kept = arena.peak_bytes();
        for (TensorView x : {acts.local.q_THK, acts.local.k_TGK, acts.local.v_TGK}) ops->fill_zero(x);
        context.begin(acts, FullAttention{});
        context.forward(acts, FullAttention{});
        EXPECT_EQ(arena.peak_bytes(), kept);
        auto const shared = attend_in_context<float>(p, FullAttention{}, {.ranks = 1, .mode = mode});
        EXPECT_TRUE(shared.forward[0].empty() && shared.backward[0].empty());
    }
}

TEST(ContextAttention, KeepsQueriesKeysAndValuesOncePerLayer) {
    auto const p = make_problem({.cu_seqlens = {0, 512}, .heads = 4, .kv_heads = 2, .head_dim = 64});
    int64_t const kept = 512 / 2 * ((2 * 4 + 2 * 2) * 64 + 4) * size_of(DType::f32), o = 512 / 2 * 4 * 64 * 4;
    run_ranks(2, [&](HostComm& world) {
        auto const device = make_host_device();
        auto const comm = make_comm_over_host(world.split(0, world.rank()));
        auto const ops = make_host_ops(*device, 1);
        for (auto const mode : {ContextMode::ulysses, ContextMode::allgather}) {
            Arena arena(*device);
            ContextAttention const context(
                *ops, *comm, {mode, mode}, ContextShard(512, 2, comm->rank()),
                {.heads = p.heads, .kv_heads = p.kv_heads, .head_dim = p.head_dim, .cu_seqlens = p.cu_seqlens}, arena);
            context.allocate(FullAttention{});
            int64_t const one = arena.peak_bytes();
            context.allocate(FullAttention{});
            // With ulysses the output is kept twice: for the pack's tokens and for the rank's.
            EXPECT_EQ(arena.peak_bytes() - one, mode == ContextMode::ulysses ? kept + o : kept);
        }
    });
}

TEST(ContextAttention, TalksAsOftenAndAsMuchAsItSays) {
    auto const p = make_problem({.cu_seqlens = kRagged, .heads = 8, .kv_heads = 4, .head_dim = 16});
    int64_t const tokens = 640 / 4, H = 8, G = 4, row = 16 * sizeof(float);
    auto const ulysses = attend_in_context<float>(p, FullAttention{}, {.ranks = 4, .mode = ContextMode::ulysses});
    auto const gather = attend_in_context<float>(p, FullAttention{}, {.ranks = 4, .mode = ContextMode::allgather});
    CommCounts const exchanged = {{"all_to_all", {2, tokens * (2 * H + 2 * G) * row, tokens * (H + 2 * G) * row, 4}}};
    int64_t const one = tokens * G * row;  // of keys, or of values
    CommCounts const gathered = {{"all_gather", {2, 2 * one, one, 4}}};
    CommCounts const returned = {{"all_gather", {2, 2 * one, one, 4}}, {"reduce_scatter", {2, 8 * one, 4 * one, 4}}};
    for (size_t rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(ulysses.forward[rank], exchanged);
        EXPECT_EQ(ulysses.backward[rank], exchanged);
        EXPECT_EQ(gather.forward[rank], gathered);
        EXPECT_EQ(gather.backward[rank], returned);
    }
    // In two groups of heads the same bytes travel, half at a time.
    auto const in_groups =
        attend_in_context<float>(p, FullAttention{}, {.ranks = 4, .mode = ContextMode::allgather, .head_groups = 2});
    CommCounts const halves = {{"all_gather", {4, 2 * one, one / 2, 4}}};
    CommCounts const halves_back = {{"all_gather", {4, 2 * one, one / 2, 4}},
                                    {"reduce_scatter", {4, 8 * one, 2 * one, 4}}};
    EXPECT_EQ(in_groups.forward[0], halves);
    EXPECT_EQ(in_groups.backward[0], halves_back);
}

TEST(ContextAttention, RefusesWhatDoesNotFit) {
    auto const p = make_problem({.cu_seqlens = {0, 64}, .heads = 4, .kv_heads = 2});
    EXPECT_THROW(attend_in_context<float>(p, {}, {.ranks = 4, .mode = ContextMode::ulysses}), Error);
    EXPECT_THROW(attend_in_context<float>(p, {}, {.ranks = 2, .mode = ContextMode::ulysses, .zigzag = true}), Error);
    EXPECT_THROW(attend_in_context<float>(p, {}, {.ranks = 2, .mode = ContextMode::automatic}), Error);
}

/// A pack of one document in which the first block is the best choice of every query.
ReferenceProblem attention_sink(int64_t tokens, int64_t block_size) {
    auto p = make_problem({.cu_seqlens = {0, static_cast<int32_t>(tokens)}, .heads = 8, .kv_heads = 8, .head_dim = 8});
    for (int64_t row = 0; row < tokens * p.heads; ++row) {
        p.q[row * p.head_dim] = 10;
        p.k[row * p.head_dim] = row < block_size * p.heads ? 10 : 0;
    }
    return p;
}

/// The most loaded rank's share of the mean.
double imbalance(std::vector<int64_t> const& pairs) {
    double sum = 0;
    for (int64_t const count : pairs) sum += static_cast<double>(count);
    return static_cast<double>(std::ranges::max(pairs)) * static_cast<double>(pairs.size()) / sum;
}

TEST(ContextBalance, HoldsWhereEveryQueryChoosesTheFirstBlock) {
    int64_t const blocks = 96;
    for (int64_t const top_k : {2, 3}) {
        MobaOptions const moba{.block_size = 16, .top_k = top_k};
        auto const p = attention_sink(blocks * moba.block_size, moba.block_size);
        auto const alone = attend_in_context<float>(p, moba, {});
        for (int64_t row = 0; row < p.tokens() * p.heads; ++row)
            ASSERT_EQ(alone.chosen[row * (top_k - 1)], row < moba.block_size * p.heads ? -1 : 0);
        for (int const ranks : {2, 4, 8})
            for (auto const mode : {ContextMode::ulysses, ContextMode::allgather}) {
                auto const shared = attend_in_context<float>(p, moba, {.ranks = ranks, .mode = mode});
                EXPECT_EQ(shared.chosen, alone.chosen);
                EXPECT_EQ(std::accumulate(shared.pairs.begin(), shared.pairs.end(), int64_t{0}), alone.pairs[0]);
                EXPECT_LE(imbalance(shared.pairs), 1.05) << ranks << " ranks, top_k " << top_k;
            }
    }
}

TEST(ContextBalance, OfFullLayersNeedsZigzagShardsOrUlysses) {
    auto const p = attention_sink(512, 16);
    for (int const ranks : {2, 4, 8}) {
        auto const load = [&](ContextMode mode, bool zigzag) {
            return imbalance(attend_in_context<float>(p, {}, {ranks, mode, zigzag}).pairs);
        };
        EXPECT_LE(load(ContextMode::ulysses, false), 1.05);
        EXPECT_LE(load(ContextMode::allgather, true), 1.05);
        EXPECT_GT(load(ContextMode::allgather, false), 1.4);
    }
}

}  // namespace
}  // namespace perigee
