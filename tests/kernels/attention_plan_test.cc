// Plans of block-sparse attention and of the gate: pure arithmetic, checked without a GPU.
#include "kernels/block_sparse_attention/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/error.h"
#include "kernels/moba_gate/plan.h"

namespace perigee {
namespace {

using ::testing::HasSubstr;

BlockSparseShape shape(int64_t tokens, int64_t B, int64_t k, int64_t documents = 1) {
    return {.tokens = tokens,
            .queries = tokens,
            .documents = documents,
            .heads = 32,
            .kv_heads = 8,
            .head_dim = 128,
            .block_size = B,
            .top_k = k};
}

BlockSparseShape on_sm90(BlockSparseShape s) {
    s.arch = KernelArch::sm90;
    return s;
}

std::vector<ScratchRegion> regions(BlockSparsePlan const& p) {
    return {p.tiles,       p.partial,      p.partial_lse, p.row_stats, p.items,  p.item_begin,
            p.split_begin, p.counters,     p.sums,        p.max_abs,   p.first,  p.block_table,
            p.block_of,    p.chunk_starts, p.arrived,     p.offsets,   p.indices};
}

TEST(AttentionPlan, RegionsAreAlignedAndDoNotOverlap) {
    for (AttentionTask const task : {AttentionTask::forward, AttentionTask::backward})
        for (int64_t const tokens : {0, 1, 1000, 32768})
            for (auto const& [k, deterministic] : {std::pair{1, true}, {3, true}, {1, false}, {3, false}}) {
                BlockSparseShape s = on_sm90(shape(tokens, 512, k, 3));
                s.deterministic = deterministic;
                BlockSparsePlan const plan = plan_attention(s, task);
                size_t end = 0;
                for (ScratchRegion const& region : regions(plan)) {
                    if (region.bytes == 0) continue;
                    EXPECT_EQ(region.offset % 256, 0u);
                    EXPECT_GE(region.offset, end);
                    end = region.offset + region.bytes;
                }
                EXPECT_GE(plan.scratch_bytes, end);
            }
}

TEST(AttentionPlan, HasRoomForTheBlocksOfAnyDocuments) {
    EXPECT_EQ(plan_attention(shape(1000, 100, 3, 1), AttentionTask::forward).blocks, 11);
    // 7 documents of 101 tokens have 2 blocks each.
    EXPECT_GE(plan_attention(shape(707, 100, 3, 7), AttentionTask::forward).blocks, 14);
    // Never more than tokens, however many documents are empty.
    EXPECT_EQ(plan_attention(shape(10, 100, 3, 5000), AttentionTask::forward).blocks, 10);
}

TEST(AttentionPlan, ForwardKernelsSuitTheGpuAndTheHeads) {
    for (int64_t const dim : {32, 64, 96, 128}) {
        BlockSparseShape s = shape(1000, 64, 3);
        s.head_dim = dim;
        EXPECT_EQ(plan_attention(s, AttentionTask::forward).arch, KernelArch::sm80);
        s.arch = KernelArch::sm90;
        EXPECT_EQ(plan_attention(s, AttentionTask::forward).arch, dim % 64 == 0 ? KernelArch::sm90 : KernelArch::sm80);
    }
}

TEST(AttentionPlan, ChunksCoverTheQueries) {
    for (int64_t const tokens : {1, 127, 128, 129, 5000, 1 << 20}) {
        BlockSparsePlan const plan = plan_attention(shape(tokens, 512, 3), AttentionTask::forward);
        EXPECT_GE(plan.chunks * plan.chunk_queries, tokens);
        EXPECT_LT((plan.chunks - 1) * plan.chunk_queries, tokens);
        EXPECT_LE(plan.chunks, 256);
    }
}

/// The bytes of the refusal are the budget with which the plan is made.
TEST(AttentionPlan, ScratchKeepsWithinTheBudgetOrIsRefused) {
    for (KernelArch const arch : {KernelArch::sm80, KernelArch::sm90})
        for (int64_t const tokens : {8192, 32768, 131072, 1 << 20})
            for (auto const& [B, k] : {std::pair{512, 3}, {128, 8}, {4096, 12}, {700, 4}})
                for (size_t const bytes : {kAttentionScratchBytes, kAttentionScratchBytes / 4, size_t{100} << 20})
                    for (auto const& [task, deterministic] : {std::pair{AttentionTask::forward, true},
                                                              {AttentionTask::backward, true},
                                                              {AttentionTask::backward, false}}) {
                        BlockSparseShape s = shape(tokens, B, k);
                        s.arch = arch;
                        s.deterministic = deterministic;
                        try {
                            BlockSparsePlan const plan = plan_attention(s, task, bytes);
                            EXPECT_LE(plan.scratch_bytes, bytes) << to_string(plan);
                            EXPECT_GE(plan.passes() * plan.pass_kv_heads * plan.pass_queries(), tokens * 8);
                        } catch (Error const& error) {
                            ASSERT_EQ(error.category(), Category::config);
                            size_t needed = 0;
                            std::string const what = error.what();
                            ASSERT_EQ(std::sscanf(what.c_str() + what.find("needs"), "needs %zu bytes", &needed), 1);
                            EXPECT_GT(needed, bytes) << what;
                            EXPECT_LE(plan_attention(s, task, needed).scratch_bytes, needed) << what;
                        }
                    }
    EXPECT_EQ(plan_attention(shape(8192, 512, 3), AttentionTask::forward).passes(), 1);
}

TEST(AttentionPlan, ABudgetThatIsTooSmallIsRefusedWithTheBytesNeeded) {
    try {
        plan_attention(shape(32768, 512, 3), AttentionTask::forward, 1 << 20);
        FAIL() << "not refused";
    } catch (Error const& error) {
        EXPECT_EQ(error.category(), Category::config);
        EXPECT_THAT(error.what(), HasSubstr("1048576 are allowed: raise train.moba_scratch_mib to"));
    }
}

/// The backward takes the routing that the forward made, in memory of their own.
TEST(AttentionPlan, ForwardAndBackwardHaveTheSameRouting) {
    for (int64_t const k : {1, 3, 8})
        for (int64_t const documents : {1, 5}) {
            BlockSparseShape s = on_sm90(shape(32768, 512, k, documents));
            BlockSparsePlan const forward = plan_attention(s, AttentionTask::forward);
            s.deterministic = false;
            BlockSparsePlan const backward = plan_attention(s, AttentionTask::backward, kAttentionScratchBytes / 8);
            for (BlockSparsePlan const& plan : {forward, backward}) {
                EXPECT_EQ(plan.routing.bytes, routing_bytes(s)) << to_string(plan);
                EXPECT_EQ(plan.routing.offset + plan.routing.bytes, plan.scratch_bytes) << to_string(plan);
            }
            for (auto const part :
                 {&BlockSparsePlan::first, &BlockSparsePlan::block_table, &BlockSparsePlan::block_of,
                  &BlockSparsePlan::chunk_starts, &BlockSparsePlan::offsets, &BlockSparsePlan::indices}) {
                EXPECT_EQ((forward.*part).offset - forward.routing.offset,
                          (backward.*part).offset - backward.routing.offset);
                EXPECT_EQ((forward.*part).bytes, (backward.*part).bytes);
            }
            EXPECT_EQ(forward.chunk_queries, backward.chunk_queries);
        }
}

TEST(AttentionPlan, LessScratchMemoryMakesMorePasses) {
    for (AttentionTask const task : {AttentionTask::forward, AttentionTask::backward}) {
        int64_t before = 0;
        for (size_t const mib : {4096, 2048, 1024, 512, 256}) {
            BlockSparsePlan const plan = plan_attention(on_sm90(shape(131072, 512, 3)), task, mib << 20);
            EXPECT_LE(plan.scratch_bytes, mib << 20) << to_string(plan);
            EXPECT_GE(plan.passes(), before) << to_string(plan);
            before = plan.passes();
        }
        EXPECT_GT(before, 8);
    }
}

/// Of blocks short of bandwidth, where a head's q is larger than the cache, but not if tiles became half empty.
TEST(AttentionPlan, PassesKeepQInTheCache) {
    auto const queries = [](int64_t tokens, int64_t B, int64_t k) {
        return plan_attention(shape(tokens, B, k), AttentionTask::forward).pass_queries();
    };
    EXPECT_EQ(queries(32768, 128, 8), 32768);
    EXPECT_EQ(queries(131072, 128, 8), 32768);
    EXPECT_EQ(queries(131072, 512, 3), 131072);
    EXPECT_EQ(plan_attention(shape(131072, 128, 8), AttentionTask::forward).passes(), 4);
    EXPECT_GE(queries(1 << 20, 128, 8), 1 << 17);
    EXPECT_EQ(plan_attention(shape(131072, 128, 8), AttentionTask::backward).pass_queries(), 131072);
}

TEST(AttentionPlan, ScratchGrowsLinearlyWithTheTokens) {
    for (auto const& [B, k] : {std::pair{512, 3}, {128, 8}}) {
        auto const bytes = [&](int64_t tokens) {
            BlockSparsePlan const plan = plan_attention(shape(tokens, B, k), AttentionTask::forward);
            return static_cast<double>(plan.scratch_bytes - plan.partial.bytes);
        };
        EXPECT_LT(bytes(1 << 20) / bytes(1 << 17), 8.2);
    }
}

TEST(AttentionPlan, BlockLocalAttentionNeedsNoRouting) {
    BlockSparsePlan const plan = plan_attention(shape(4096, 512, 1), AttentionTask::forward);
    EXPECT_EQ(plan.indices.bytes + plan.chunk_starts.bytes + plan.partial.bytes, 0u);
    EXPECT_EQ(plan.passes(), 1);
}

TEST(MobaGatePlan, TakesSm90WhereARowsSlotsFitIntoRegisters) {
    auto const arch = [](auto change) {
        BlockSparseShape s = on_sm90(shape(4096, 512, 3));
        MobaOptions options;
        change(s, options);
        s.top_k = options.top_k;
        return plan_moba_gate(s, options).arch;
    };
    EXPECT_EQ(arch([](auto&, auto&) {}), KernelArch::sm90);
    EXPECT_EQ(arch([](auto& s, auto&) { s.arch = KernelArch::sm80; }), KernelArch::sm80);
    EXPECT_EQ(arch([](auto& s, auto&) { s.head_dim = 96; }), KernelArch::sm80);
    EXPECT_EQ(arch([](auto&, auto& o) { o.top_k = 16; }), KernelArch::sm90);
    EXPECT_EQ(arch([](auto&, auto& o) { o.top_k = 17; }), KernelArch::sm80);
    EXPECT_EQ(arch([](auto& s, auto&) { s.heads = 128, s.kv_heads = 1; }), KernelArch::sm90);
    EXPECT_EQ(arch([](auto& s, auto&) { s.heads = 129, s.kv_heads = 1; }), KernelArch::sm80);
    EXPECT_EQ(arch([](auto& s, auto& o) { o.selection = MobaSelection::per_group, s.heads = 129, s.kv_heads = 1; }),
              KernelArch::sm90);
}

TEST(MobaGatePlan, RegionsAreAlignedAndDoNotOverlap) {
    MobaGatePlan const plan = plan_moba_gate(shape(1000, 512, 3, 3), {});
    size_t end = 0;
    for (ScratchRegion const& region : {plan.centroids, plan.first, plan.block_table, plan.block_of}) {
        EXPECT_EQ(region.offset % 256, 0u);
        EXPECT_GE(region.offset, end);
        end = region.offset + region.bytes;
    }
    EXPECT_GE(plan.scratch_bytes, end);
    EXPECT_THROW(plan_moba_gate(shape(1000, 256, 3), {}), Error);
}

TEST(AttentionPlan, Sm90BackwardTakesKvTilesOf128Keys) {
    auto const kernels = [](int64_t B, int64_t dim) {
        BlockSparseShape s = on_sm90(shape(4096, B, 3));
        s.head_dim = dim;
        return plan_attention(s, AttentionTask::backward).arch;
    };
    EXPECT_EQ(kernels(512, 128), KernelArch::sm90);
    EXPECT_EQ(kernels(128, 64), KernelArch::sm90);
    EXPECT_EQ(kernels(1000, 64), KernelArch::sm90);
    EXPECT_EQ(kernels(64, 128), KernelArch::sm80);
    EXPECT_EQ(kernels(200, 128), KernelArch::sm80);
    EXPECT_EQ(kernels(512, 96), KernelArch::sm80);
    EXPECT_EQ(plan_attention(shape(4096, 512, 3), AttentionTask::backward).arch, KernelArch::sm80);
}

/// One partial per selected block and tile group; the local block's first is in dq.
TEST(AttentionPlan, Sm90BackwardHasPassesOfWholeHeadsWhereItCan) {
    for (auto const& [tokens, B, k, passes] : {std::tuple{32768, 512, 3, 1},
                                               {32768, 128, 8, 1},
                                               {131072, 512, 3, 2},
                                               {131072, 128, 8, 4},
                                               {131072, 4096, 12, 104}}) {
        BlockSparsePlan const plan = plan_attention(on_sm90(shape(tokens, B, k)), AttentionTask::backward);
        EXPECT_EQ(plan.passes(), passes) << to_string(plan);
        EXPECT_EQ(plan.row_slots, k * plan.kv_tiles / plan.tile_group - 1);
        EXPECT_EQ(plan.tile_group, std::min(B / 128, 4));
        EXPECT_EQ(plan.carried_tiles > 0, plan.pass_chunks < plan.chunks) << to_string(plan);
    }
}

TEST(AttentionPlan, SumsAreCarriedWhereAHeadTakesSeveralPasses) {
    for (auto const& [B, k, kv_heads] : {std::tuple{512, 3, 1}, {128, 8, 1}, {128, 32, 1}, {512, 3, 4}}) {
        BlockSparseShape s = on_sm90(shape(1 << 20, B, k));
        s.heads = 4, s.kv_heads = kv_heads;
        BlockSparsePlan const plan = plan_attention(s, AttentionTask::backward, kAttentionScratchBytes / 2 * 3);
        // 8192 KV tiles of 128 keys and one more, of the document's end.
        bool const several = plan.pass_chunks < plan.chunks;
        EXPECT_EQ(plan.carried_tiles, several ? 8193 : 0) << to_string(plan);
        EXPECT_GT(plan.sums.bytes, static_cast<size_t>(plan.carried_tiles) * 2 * 128 * 128 * 4) << to_string(plan);
        EXPECT_TRUE(!several || plan.pass_kv_heads == 1) << to_string(plan);
    }
}

TEST(AttentionPlan, NonDeterministicBackwardAddsToDqUnlessThatRoundsTooOften) {
    for (auto const& [tokens, B, k, adds] : {std::tuple{131072, 512, 3, true},
                                             {131072, 128, 8, true},
                                             {131072, 128, 32, true},
                                             {131072, 128, 33, false},
                                             {131072, 1024, 4, true},
                                             {131072, 1024, 5, false},
                                             {131072, 4096, 12, false},
                                             {1 << 20, 128, 8, true}}) {
        BlockSparseShape s = on_sm90(shape(tokens, B, k));
        BlockSparsePlan const partials = plan_attention(s, AttentionTask::backward);
        EXPECT_FALSE(partials.adds_to_dq);
        s.deterministic = false;
        BlockSparsePlan const plan = plan_attention(s, AttentionTask::backward);
        EXPECT_EQ(plan.adds_to_dq, adds) << to_string(plan);
        EXPECT_EQ(plan.partial.bytes == 0, adds) << to_string(plan);
        EXPECT_EQ(plan.tile_group, adds ? 1 : partials.tile_group) << to_string(plan);
        EXPECT_LE(plan.passes(), adds ? 1 : partials.passes()) << to_string(plan);
        EXPECT_FALSE(plan_attention(s, AttentionTask::forward).adds_to_dq);
        s.arch = KernelArch::sm80;
        EXPECT_FALSE(plan_attention(s, AttentionTask::backward).adds_to_dq);
    }
}

TEST(AttentionPlan, VeryLongBlocksKeepWithinTheBudgetToo) {
    for (int64_t const B : {4096, 16384, 1 << 20}) {
        BlockSparseShape s = on_sm90(shape(1 << 20, B, 16));
        s.heads = 8, s.kv_heads = 1;
        BlockSparsePlan const plan = plan_attention(s, AttentionTask::backward);
        EXPECT_LE(plan.partial.bytes, kAttentionScratchBytes) << to_string(plan);
        EXPECT_EQ(plan.arch, KernelArch::sm80) << to_string(plan);
        EXPECT_EQ(plan.row_slots, 15);
    }
}

TEST(AttentionPlan, RefusesWhatTheKernelsDoNotTake) {
    auto const refusal = [](auto change) {
        BlockSparseShape s = shape(1024, 64, 3);
        change(s);
        return attention_refusal(s);
    };
    EXPECT_EQ(refusal([](BlockSparseShape&) {}), "");
    EXPECT_THAT(refusal([](BlockSparseShape& s) { s.head_dim = 80; }), HasSubstr("head_dim 80"));
    EXPECT_THAT(refusal([](BlockSparseShape& s) { s.kv_heads = 5; }), HasSubstr("32 heads"));
    EXPECT_THAT(refusal([](BlockSparseShape& s) { s.top_k = 65; }), HasSubstr("top_k 65"));
    EXPECT_THAT(refusal([](BlockSparseShape& s) { s.block_size = 0; }), HasSubstr("block_size 0"));
    EXPECT_THAT(refusal([](BlockSparseShape& s) { s.queries = 2000; }), HasSubstr("2000 queries"));
    EXPECT_THAT(refusal([](BlockSparseShape& s) {
                    s.tokens = s.queries = s.block_size = 1 << 20;
                    s.documents = 1 << 16;
                }),
                HasSubstr("65536 documents"));
    EXPECT_THAT(refusal([](BlockSparseShape& s) { s.documents = 0; }), HasSubstr("in 0 documents"));
    EXPECT_EQ(refusal([](BlockSparseShape& s) { s.tokens = s.queries = s.documents = 0; }), "");
    for (int64_t const many : {int64_t{1} << 30, int64_t{1} << 40, INT64_MAX}) {
        EXPECT_THAT(refusal([&](BlockSparseShape& s) { s.documents = many; }), HasSubstr("too many"));
        EXPECT_THAT(refusal([&](BlockSparseShape& s) { s.tokens = s.queries = many; }), HasSubstr("too many"));
        EXPECT_THAT(refusal([&](BlockSparseShape& s) { s.heads = s.kv_heads = many; }), HasSubstr("more than 65535"));
        EXPECT_EQ(refusal([&](BlockSparseShape& s) { s.block_size = many; }), "") << "one block, whatever its size";
    }
    EXPECT_THAT(refusal([](BlockSparseShape& s) {
                    s.tokens = s.queries = s.block_size = (1 << 30) - 1;
                    s.heads = s.kv_heads = 65535;
                }),
                HasSubstr("too many"));
    EXPECT_THAT(refusal([](BlockSparseShape& s) {
                    s.tokens = s.queries = s.block_size = 1 << 24;
                    s.heads = 128;
                    s.kv_heads = 64;
                }),
                HasSubstr("16777216 queries x 128 heads are too many"));
    auto const with_blocks = [&](int64_t blocks) {
        return refusal([&](BlockSparseShape& s) {
            s.tokens = blocks;
            s.queries = s.block_size = s.top_k = 1;
            s.heads = s.kv_heads = 1;
        });
    };
    EXPECT_EQ(with_blocks(65535 * 1024), "");
    EXPECT_THAT(with_blocks(65535 * 1024 + 1), HasSubstr("too many"));
    BlockSparseShape bad = shape(1024, 64, 3);
    bad.head_dim = 80;
    EXPECT_THROW(plan_attention(bad, AttentionTask::forward), Error);
}

TEST(AttentionPlan, IsPrintable) {
    BlockSparseShape const s = shape(32768, 512, 3);
    EXPECT_EQ(to_string(s), "T 32768 q 32768 H 32/8 x 128, B 512 k 3, 1 documents");
    EXPECT_THAT(to_string(plan_attention(s, AttentionTask::forward)),
                HasSubstr("forward: 65 blocks, 256 chunks of 128, 1 pass of 8 kv heads x 256 chunks, 128-row tiles"));
}

}  // namespace
}  // namespace perigee
