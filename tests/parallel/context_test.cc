// Which mode context parallelism takes, and which tokens each rank holds.
#include "parallel/context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Call>
std::string refusal(Call call) {
    try {
        call();
    } catch (Error const& error) {
        EXPECT_EQ(error.category(), Category::config);
        return error.what();
    }
    return "accepted";
}

TEST(ContextMode, FollowsTheKindOfTheLayer) {
    auto const choose = [](int tp, int cp, int64_t kv_heads) {
        return resolve_context_modes(ContextMode::automatic, {.cp = cp, .tp = tp}, kv_heads);
    };
    constexpr ContextModes kMixed{ContextMode::ulysses, ContextMode::allgather};
    constexpr ContextModes kGathered{ContextMode::allgather, ContextMode::allgather};
    EXPECT_EQ(choose(1, 1, 3), kMixed);
    EXPECT_EQ(choose(1, 4, 8), kMixed);
    EXPECT_EQ(choose(2, 4, 8), kMixed);
    EXPECT_EQ(choose(4, 4, 8), kGathered) << "2 heads of a rank";
    EXPECT_EQ(choose(1, 4, 6), kGathered);
    EXPECT_EQ(kMixed.of(FullAttention{}), ContextMode::ulysses);
    EXPECT_EQ(kMixed.of(MobaOptions{}), ContextMode::allgather);
    EXPECT_EQ(kMixed.of(NearestBlocks{}), ContextMode::allgather);
}

TEST(ContextMode, IsThatOfItsOnlyKindForAPassOfOneKind) {
    constexpr ContextModes kMixed{ContextMode::ulysses, ContextMode::allgather};
    std::vector<Selection> const full(2, FullAttention{}), sparse(2, MobaOptions{}),
        both = {MobaOptions{}, FullAttention{}};
    EXPECT_EQ(modes_of_layers(kMixed, full), (ContextModes{ContextMode::ulysses, ContextMode::ulysses}));
    EXPECT_EQ(modes_of_layers(kMixed, sparse), (ContextModes{ContextMode::allgather, ContextMode::allgather}));
    EXPECT_EQ(modes_of_layers(kMixed, both), kMixed);
}

TEST(ContextMode, IsTheOneAskedForWhereItFits) {
    MeshShape const shape{.cp = 4, .tp = 2};
    for (ContextMode const mode : {ContextMode::allgather, ContextMode::ulysses})
        EXPECT_EQ(resolve_context_modes(mode, shape, 8), (ContextModes{mode, mode}));
    EXPECT_THAT(refusal([&] { resolve_context_modes(ContextMode::ulysses, shape, 4); }),
                AllOf(HasSubstr("2 key/value heads"), HasSubstr("parallel.context = 4")));
}

TEST(ContextShard, IsContiguous) {
    ContextShard const shard(24, 3, 1);
    EXPECT_EQ(shard.tokens(), 8);
    EXPECT_THAT(shard.ranges(), ElementsAre(TokenRange{8, 16}));
    EXPECT_THAT(shard.ranges(2), ElementsAre(TokenRange{16, 24}));
    EXPECT_THAT(ContextShard(24, 1, 0, true).ranges(), ElementsAre(TokenRange{0, 24}));
}

TEST(ContextShard, AsZigzagPairsEarlyAndLateChunks) {
    ContextShard const shard(24, 3, 1, true);
    EXPECT_EQ(shard.tokens(), 8);
    EXPECT_THAT(shard.ranges(0), ElementsAre(TokenRange{0, 4}, TokenRange{20, 24}));
    EXPECT_THAT(shard.ranges(1), ElementsAre(TokenRange{4, 8}, TokenRange{16, 20}));
    EXPECT_THAT(shard.ranges(2), ElementsAre(TokenRange{8, 12}, TokenRange{12, 16}));
}

TEST(ContextShard, NamesBothNumbersWhereTokensDoNotDivide) {
    EXPECT_THAT(refusal([] { ContextShard(30, 4, 0); }), AllOf(HasSubstr("30 tokens"), HasSubstr("4 equal parts")));
    EXPECT_THAT(refusal([] { ContextShard(12, 4, 0, true); }),
                AllOf(HasSubstr("12 tokens"), HasSubstr("8 equal parts"), HasSubstr("parallel.context = 4")));
}

TEST(ShardBatch, TakesTheRanksTokensAndKeepsTheBorders) {
    Batch pack{.ids_T = std::vector<int32_t>(16),
               .targets_T = {},
               .weights_T = {},
               .positions_T = {},
               .cu_seqlens = {0, 5, 16}};
    std::iota(pack.ids_T.begin(), pack.ids_T.end(), 100);
    for (int32_t t = 0; t < 16; ++t) {
        pack.targets_T.push_back(200 + t);
        pack.weights_T.push_back(0.5f * static_cast<float>(t));
        pack.positions_T.push_back(t < 5 ? t : t - 5);
    }
    Batch const local = shard_batch(pack, ContextShard(16, 4, 1, true));
    EXPECT_THAT(local.ids_T, ElementsAre(102, 103, 112, 113));
    EXPECT_THAT(local.targets_T, ElementsAre(202, 203, 212, 213));
    EXPECT_THAT(local.weights_T, ElementsAre(1.0f, 1.5f, 6.0f, 6.5f));
    EXPECT_THAT(local.positions_T, ElementsAre(2, 3, 7, 8));
    EXPECT_EQ(local.cu_seqlens, pack.cu_seqlens);
    EXPECT_THROW(shard_batch(local, ContextShard(16, 4, 1, true)), Error);
}

}  // namespace
}  // namespace perigee
