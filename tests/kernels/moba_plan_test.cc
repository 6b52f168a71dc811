// Planning of MoBA on the GPU: pure arithmetic, checked without one.
#include "kernels/moba/moba_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace perigee {
namespace {

using ::testing::HasSubstr;

MobaShape shape(int64_t tokens, int64_t B, int64_t k, int64_t documents = 1) {
    return {.tokens = tokens,
            .queries = tokens,
            .documents = documents,
            .heads = 32,
            .kv_heads = 8,
            .head_dim = 128,
            .options = {.block_size = B, .top_k = k}};
}

MobaShape on_hopper(MobaShape s) {
    s.gpu = MobaKernels::hopper;
    return s;
}

std::vector<MobaRegion> regions(MobaPlan const& p) {
    return {p.centroids,   p.tiles,    p.partial, p.partial_lse, p.row_numbers, p.items,      p.item_begin,
            p.piece_begin, p.counters, p.pieces,  p.carried,     p.largest,     p.first,      p.block_table,
            p.block_of,    p.places,   p.starts,  p.totals,      p.arrived,     p.list_begin, p.list};
}

TEST(MobaPlan, RegionsAreAlignedAndDoNotOverlap) {
    for (MobaTask const task : {MobaTask::select, MobaTask::forward, MobaTask::backward})
        for (int64_t const tokens : {0, 1, 1000, 32768})
            for (auto const& [k, deterministic] : {std::pair{1, true}, {3, true}, {1, false}, {3, false}}) {
                MobaShape s = on_hopper(shape(tokens, 512, k, 3));
                s.deterministic = deterministic;
                MobaPlan const plan = plan_moba(s, task);
                size_t end = 0;
                for (MobaRegion const& region : regions(plan)) {
                    if (region.bytes == 0) continue;
                    EXPECT_EQ(region.offset % 256, 0u);
                    EXPECT_GE(region.offset, end);
                    end = region.offset + region.bytes;
                }
                EXPECT_GE(plan.scratch_bytes, end);
            }
}

TEST(MobaPlan, HasRoomForTheBlocksOfAnyDocuments) {
    EXPECT_EQ(plan_moba(shape(1000, 100, 3, 1), MobaTask::select).blocks, 11);
    // 7 documents of 101 tokens have 2 blocks each.
    EXPECT_GE(plan_moba(shape(707, 100, 3, 7), MobaTask::select).blocks, 14);
    // Never more than tokens, however many documents are empty.
    EXPECT_EQ(plan_moba(shape(10, 100, 3, 5000), MobaTask::select).blocks, 10);
}

TEST(MobaPlan, ForwardKernelsSuitTheGpuAndTheHeads) {
    for (int64_t const dim : {32, 64, 96, 128}) {
        MobaShape s = shape(1000, 64, 3);
        s.head_dim = dim;
        EXPECT_EQ(plan_moba(s, MobaTask::forward).kernels, MobaKernels::mma);
        s.gpu = MobaKernels::hopper;
        EXPECT_EQ(plan_moba(s, MobaTask::forward).kernels, dim % 64 == 0 ? MobaKernels::hopper : MobaKernels::mma);
    }
}

TEST(MobaPlan, ChunksCoverTheQueries) {
    for (int64_t const tokens : {1, 127, 128, 129, 5000, 1 << 20}) {
        MobaPlan const plan = plan_moba(shape(tokens, 512, 3), MobaTask::forward);
        EXPECT_GE(plan.chunks * plan.chunk_queries, tokens);
        EXPECT_LT((plan.chunks - 1) * plan.chunk_queries, tokens);
        EXPECT_LE(plan.chunks, 256);
    }
}

/// All of it: lists, pieces and carried sums too.
TEST(MobaPlan, ScratchKeepsWithinTheBudget) {
    for (MobaKernels const gpu : {MobaKernels::mma, MobaKernels::hopper})
        for (int64_t const tokens : {8192, 32768, 131072, 1 << 20})
            for (auto const& [B, k] : {std::pair{512, 3}, {128, 8}, {4096, 12}, {700, 4}})
                for (size_t const bytes : {kMobaScratchBytes, kMobaScratchBytes / 4, size_t{100} << 20})
                    for (auto const& [task, deterministic] : {std::pair{MobaTask::forward, true},
                                                              {MobaTask::backward, true},
                                                              {MobaTask::backward, false}}) {
                        MobaShape s = shape(tokens, B, k);
                        s.gpu = gpu;
                        s.deterministic = deterministic;
                        MobaPlan const plan = plan_moba(s, task, bytes);
                        EXPECT_GE(plan.waves() * plan.wave_kv_heads * plan.wave_queries(), tokens * 8);
                        // What one wave of one chunk takes is more where the lists alone are.
                        MobaPlan const least = plan_moba(s, task, 1);
                        ASSERT_EQ(least.wave_kv_heads * least.wave_chunks, 1) << to_string(least);
                        if (least.scratch_bytes <= bytes && plan.kernels == least.kernels) {
                            EXPECT_LE(plan.scratch_bytes, bytes) << to_string(plan);
                        } else {
                            EXPECT_LE(plan.partial.bytes + plan.partial_lse.bytes, bytes) << to_string(plan);
                        }
                    }
    EXPECT_EQ(plan_moba(shape(8192, 512, 3), MobaTask::forward).waves(), 1);
}

/// The backward takes the lists that the forward made, in memory of their own.
TEST(MobaPlan, ForwardAndBackwardHaveTheSameLists) {
    for (int64_t const k : {1, 3, 8})
        for (int64_t const documents : {1, 5}) {
            MobaShape s = on_hopper(shape(32768, 512, k, documents));
            MobaPlan const forward = plan_moba(s, MobaTask::forward);
            s.deterministic = false;
            MobaPlan const backward = plan_moba(s, MobaTask::backward, kMobaScratchBytes / 8);
            for (MobaPlan const& plan : {forward, backward}) {
                EXPECT_EQ(plan.lists.bytes, moba_lists_bytes(s)) << to_string(plan);
                EXPECT_EQ(plan.lists.offset + plan.lists.bytes, plan.scratch_bytes) << to_string(plan);
            }
            for (auto const part : {&MobaPlan::first, &MobaPlan::block_table, &MobaPlan::block_of, &MobaPlan::places,
                                    &MobaPlan::starts, &MobaPlan::totals, &MobaPlan::list_begin, &MobaPlan::list}) {
                EXPECT_EQ((forward.*part).offset - forward.lists.offset,
                          (backward.*part).offset - backward.lists.offset);
                EXPECT_EQ((forward.*part).bytes, (backward.*part).bytes);
            }
            EXPECT_EQ(forward.chunk_queries, backward.chunk_queries);
        }
}

TEST(MobaPlan, LessScratchMemoryMakesMoreWaves) {
    for (MobaTask const task : {MobaTask::forward, MobaTask::backward}) {
        int64_t before = 0;
        for (size_t const mib : {4096, 2048, 1024, 512, 256}) {
            MobaPlan const plan = plan_moba(on_hopper(shape(131072, 512, 3)), task, mib << 20);
            EXPECT_LE(plan.scratch_bytes, mib << 20) << to_string(plan);
            EXPECT_GE(plan.waves(), before) << to_string(plan);
            before = plan.waves();
        }
        EXPECT_GT(before, 8);
    }
}

/// Of blocks short of bandwidth, where a head's q is larger than the cache, but not if lists became short.
TEST(MobaPlan, WavesKeepQInTheCache) {
    auto const queries = [](int64_t tokens, int64_t B, int64_t k) {
        return plan_moba(shape(tokens, B, k), MobaTask::forward).wave_queries();
    };
    EXPECT_EQ(queries(32768, 128, 8), 32768);
    EXPECT_EQ(queries(131072, 128, 8), 32768);
    EXPECT_EQ(queries(131072, 512, 3), 131072);
    EXPECT_EQ(plan_moba(shape(131072, 128, 8), MobaTask::forward).waves(), 4);
    EXPECT_GE(queries(1 << 20, 128, 8), 1 << 17);
    EXPECT_EQ(plan_moba(shape(131072, 128, 8), MobaTask::backward).wave_queries(), 131072);
}

TEST(MobaPlan, ScratchGrowsLinearlyWithTheTokens) {
    for (auto const& [B, k] : {std::pair{512, 3}, {128, 8}}) {
        auto const bytes = [&](int64_t tokens) {
            MobaPlan const plan = plan_moba(shape(tokens, B, k), MobaTask::forward);
            return static_cast<double>(plan.scratch_bytes - plan.partial.bytes);
        };
        EXPECT_LT(bytes(1 << 20) / bytes(1 << 17), 8.2);
    }
}

TEST(MobaPlan, BlockLocalAttentionNeedsNoLists) {
    MobaPlan const plan = plan_moba(shape(4096, 512, 1), MobaTask::forward);
    EXPECT_EQ(plan.list.bytes + plan.places.bytes + plan.partial.bytes, 0u);
    EXPECT_EQ(plan.waves(), 1);
}

TEST(MobaPlan, ChoosesByWarpgroupsWhereARowsPlacesFitIntoRegisters) {
    auto const kernels = [](auto change) {
        MobaShape s = shape(4096, 512, 3);
        s.gpu = MobaKernels::hopper;
        change(s);
        return plan_moba(s, MobaTask::select).kernels;
    };
    EXPECT_EQ(kernels([](MobaShape&) {}), MobaKernels::hopper);
    EXPECT_EQ(kernels([](MobaShape& s) { s.gpu = MobaKernels::mma; }), MobaKernels::mma);
    EXPECT_EQ(kernels([](MobaShape& s) { s.head_dim = 96; }), MobaKernels::mma);
    EXPECT_EQ(kernels([](MobaShape& s) { s.options.top_k = 16; }), MobaKernels::hopper);
    EXPECT_EQ(kernels([](MobaShape& s) { s.options.top_k = 17; }), MobaKernels::mma);
    EXPECT_EQ(kernels([](MobaShape& s) { s.heads = 128, s.kv_heads = 1; }), MobaKernels::hopper);
    EXPECT_EQ(kernels([](MobaShape& s) { s.heads = 129, s.kv_heads = 1; }), MobaKernels::mma);
    EXPECT_EQ(kernels([](MobaShape& s) { s.options.selection = MobaSelection::per_group; }), MobaKernels::mma);
    EXPECT_EQ(kernels([](MobaShape& s) { s.options.selection = MobaSelection::per_group, s.kv_heads = s.heads; }),
              MobaKernels::hopper);
}

TEST(MobaPlan, FusedBackwardTakesRunsOf128KeysOnHopper) {
    auto const kernels = [](int64_t B, int64_t dim) {
        MobaShape s = on_hopper(shape(4096, B, 3));
        s.head_dim = dim;
        return plan_moba(s, MobaTask::backward).kernels;
    };
    EXPECT_EQ(kernels(512, 128), MobaKernels::hopper);
    EXPECT_EQ(kernels(128, 64), MobaKernels::hopper);
    EXPECT_EQ(kernels(1000, 64), MobaKernels::hopper);
    EXPECT_EQ(kernels(64, 128), MobaKernels::mma);
    EXPECT_EQ(kernels(200, 128), MobaKernels::mma);
    EXPECT_EQ(kernels(512, 96), MobaKernels::mma);
    EXPECT_EQ(plan_moba(shape(4096, 512, 3), MobaTask::backward).kernels, MobaKernels::mma);
}

/// One partial result per choice and chain; the own block's first is in dq.
TEST(MobaPlan, FusedBackwardHasWavesOfWholeHeadsWhereItCan) {
    for (auto const& [tokens, B, k, waves] : {std::tuple{32768, 512, 3, 1},
                                              {32768, 128, 8, 1},
                                              {131072, 512, 3, 2},
                                              {131072, 128, 8, 4},
                                              {131072, 4096, 12, 104}}) {
        MobaPlan const plan = plan_moba(on_hopper(shape(tokens, B, k)), MobaTask::backward);
        EXPECT_EQ(plan.waves(), waves) << to_string(plan);
        EXPECT_EQ(plan.row_slots, k * plan.runs / plan.chain - 1);
        EXPECT_EQ(plan.chain, std::min(B / 128, 4));
        EXPECT_EQ(plan.carried.bytes > 0, plan.wave_chunks < plan.chunks) << to_string(plan);
    }
}

/// Where fp32 sums of all keys leave few room for partial results, they go from wave to wave in dk and dv, unless there
/// would be many waves.
TEST(MobaPlan, FusedBackwardCarriesSumsWhereThatIsCheapOrWavesAreMany) {
    auto const plan = [](int64_t B, int64_t k, size_t bytes) {
        MobaShape s = on_hopper(shape(1 << 20, B, k));
        s.heads = 4, s.kv_heads = 1;
        return plan_moba(s, MobaTask::backward, bytes);
    };
    EXPECT_EQ(plan(512, 3, kMobaScratchBytes).waves(), 2);
    EXPECT_EQ(plan(512, 3, kMobaScratchBytes).carried.bytes, 0u);
    EXPECT_EQ(plan(128, 8, kMobaScratchBytes).waves(), 4);
    EXPECT_EQ(plan(128, 8, kMobaScratchBytes).carried.bytes, 0u);
    // 8192 runs of 128 keys and one more, of the document's end.
    EXPECT_EQ(plan(128, 32, kMobaScratchBytes / 2 * 3).carried.bytes, size_t{8193} * 2 * 128 * 128 * 4);
    EXPECT_GT(plan(128, 32, kMobaScratchBytes / 2 * 3).waves(), 12);
    EXPECT_LE(plan(128, 32, kMobaScratchBytes / 2 * 3).scratch_bytes, kMobaScratchBytes / 2 * 3);
}

TEST(MobaPlan, SumsAreCarriedOnlyWhereThereIsRoomForThem) {
    // With room for sums, the second of these plans needs other waves, among them such that carry nothing.
    struct Case {
        int64_t tokens, queries, heads, kv_heads, B, k, documents;
        size_t bytes;
    };
    for (Case const& c : {Case{131'072, 131'072, 1, 1, 128, 3, 8, size_t{64} << 20},
                          Case{1'000'000, 1'000'000, 128, 32, 128, 2, 1024, kMobaScratchBytes},
                          Case{3'000'000, 1'500'000, 32, 32, 128, 2, 1, kMobaScratchBytes}}) {
        MobaShape s = on_hopper(shape(c.tokens, c.B, c.k, c.documents));
        s.queries = c.queries, s.heads = c.heads, s.kv_heads = c.kv_heads, s.head_dim = 64;
        MobaPlan const plan = plan_moba(s, MobaTask::backward, c.bytes);
        EXPECT_EQ(plan.carries, plan.carried.bytes > 0) << to_string(s) << "\n" << to_string(plan);
        EXPECT_LE(plan.carried.offset + plan.carried.bytes, plan.scratch_bytes);
        EXPECT_TRUE(plan.wave_chunks == plan.chunks || plan.wave_kv_heads == 1) << to_string(plan);
    }
}

TEST(MobaPlan, FusedBackwardInAnyOrderAddsToDqUnlessThatRoundsTooOften) {
    for (auto const& [tokens, B, k, adds] : {std::tuple{131072, 512, 3, true},
                                             {131072, 128, 8, true},
                                             {131072, 128, 32, true},
                                             {131072, 128, 33, false},
                                             {131072, 1024, 4, true},
                                             {131072, 1024, 5, false},
                                             {131072, 4096, 12, false},
                                             {1 << 20, 128, 8, true}}) {
        MobaShape s = on_hopper(shape(tokens, B, k));
        MobaPlan const places = plan_moba(s, MobaTask::backward);
        EXPECT_FALSE(places.adds_to_dq);
        s.deterministic = false;
        MobaPlan const plan = plan_moba(s, MobaTask::backward);
        EXPECT_EQ(plan.adds_to_dq, adds) << to_string(plan);
        EXPECT_EQ(plan.partial.bytes == 0, adds) << to_string(plan);
        EXPECT_EQ(plan.chain, adds ? 1 : places.chain) << to_string(plan);
        EXPECT_LE(plan.waves(), adds ? 1 : places.waves()) << to_string(plan);
        EXPECT_FALSE(plan_moba(s, MobaTask::forward).adds_to_dq);
        // Where nothing fits, the plan that takes less.
        MobaPlan const least = plan_moba(s, MobaTask::backward, 1);
        s.deterministic = true;
        EXPECT_LE(least.scratch_bytes, plan_moba(s, MobaTask::backward, 1).scratch_bytes) << to_string(least);
        s.gpu = MobaKernels::mma;
        EXPECT_FALSE(plan_moba(s, MobaTask::backward).adds_to_dq);
    }
}

/// One sum of a run's keys for all pieces and waves of a head, but never more waves; at 4096/12 far fewer.
TEST(MobaPlan, FusedBackwardInAnyOrderSharesSums) {
    int shared = 0;
    for (int64_t const tokens : {131072, 1 << 20})
        for (auto const& [B, k, heads] : {std::tuple{128, 40, 8},
                                          {512, 3, 8},
                                          {512, 4, 8},
                                          {512, 9, 8},
                                          {1024, 12, 32},
                                          {700, 12, 8},
                                          {4096, 4, 32},
                                          {4096, 12, 8}})
            for (size_t const bytes : {kMobaScratchBytes, kMobaScratchBytes / 8, size_t{200} << 20}) {
                MobaShape s = on_hopper(shape(tokens, B, k));
                s.kv_heads = heads;
                MobaPlan const fixed = plan_moba(s, MobaTask::backward, bytes);
                s.deterministic = false;
                MobaPlan const plan = plan_moba(s, MobaTask::backward, bytes);
                EXPECT_FALSE(fixed.shares_sums);
                EXPECT_TRUE(plan.carries || !plan.shares_sums) << to_string(plan);
                EXPECT_TRUE(plan.pieces.bytes == 0 || !plan.shares_sums) << to_string(plan);
                EXPECT_TRUE(plan.wave_kv_heads == 1 || !plan.shares_sums) << to_string(plan);
                shared += plan.shares_sums;
                EXPECT_LE(plan.waves(), fixed.waves()) << to_string(plan) << "\n" << to_string(fixed);
                EXPECT_LE(plan.scratch_bytes, std::max(bytes, fixed.scratch_bytes)) << to_string(plan);
            }
    EXPECT_GE(shared, 16);
    MobaShape s = on_hopper(shape(131072, 4096, 12));
    s.deterministic = false;
    EXPECT_EQ(plan_moba(s, MobaTask::backward).waves(), 64);
    // Visits that add to dq in one wave, where neither fits.
    s.options = {.block_size = 512, .top_k = 3};
    EXPECT_TRUE(plan_moba(s, MobaTask::backward, size_t{200} << 20).adds_to_dq);
}

TEST(MobaPlan, VeryLongBlocksKeepWithinTheBudgetToo) {
    for (int64_t const B : {4096, 16384, 1 << 20}) {
        MobaShape s = on_hopper(shape(1 << 20, B, 16));
        s.kv_heads = 1;
        MobaPlan const plan = plan_moba(s, MobaTask::backward);
        EXPECT_LE(plan.partial.bytes, kMobaScratchBytes) << to_string(plan);
        EXPECT_EQ(plan.kernels, MobaKernels::mma) << to_string(plan);
        EXPECT_EQ(plan.row_slots, 15);
    }
}

TEST(MobaPlan, RefusesWhatTheKernelsDoNotTake) {
    auto const refusal = [](auto change) {
        MobaShape s = shape(1024, 64, 3);
        change(s);
        return moba_refusal(s);
    };
    EXPECT_EQ(refusal([](MobaShape&) {}), "");
    EXPECT_THAT(refusal([](MobaShape& s) { s.head_dim = 80; }), HasSubstr("head_dim 80"));
    EXPECT_THAT(refusal([](MobaShape& s) { s.kv_heads = 5; }), HasSubstr("32 heads"));
    EXPECT_THAT(refusal([](MobaShape& s) { s.options.top_k = 65; }), HasSubstr("top_k 65"));
    EXPECT_THAT(refusal([](MobaShape& s) { s.options.block_size = 0; }), HasSubstr("block_size 0"));
    EXPECT_THAT(refusal([](MobaShape& s) { s.queries = 2000; }), HasSubstr("2000 queries"));
    EXPECT_THAT(refusal([](MobaShape& s) {
                    s.tokens = s.queries = s.options.block_size = 1 << 20;
                    s.documents = 1 << 16;
                }),
                HasSubstr("65536 documents"));
    MobaShape bad = shape(1024, 64, 3);
    bad.head_dim = 80;
    EXPECT_THROW(plan_moba(bad, MobaTask::select), Error);
}

TEST(MobaPlan, IsPrintable) {
    MobaShape const s = shape(32768, 512, 3);
    EXPECT_EQ(to_string(s), "T 32768 q 32768 H 32/8 x 128, B 512 k 3, 1 documents");
    EXPECT_THAT(to_string(plan_moba(s, MobaTask::forward)),
                HasSubstr("forward: 65 blocks, 256 chunks of 128, 1 wave of 8 kv heads x 256 chunks, 128-row tiles"));
}

}  // namespace
}  // namespace perigee
