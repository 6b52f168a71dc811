// Plans of a GPU's attention kernels are made once for a shape and handed to all operations of that shape.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/log.h"
#include "ops/gpu_attention.h"

namespace perigee {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPlannedTokens = 4096;
constexpr MobaOptions kGate = {.block_size = 128, .top_k = 3};

/// Without memory: plans ask for shapes alone.
struct Pack {
    explicit Pack(int64_t documents) {
        for (int64_t d = 0; d <= documents; ++d)
            borders.push_back(static_cast<int32_t>(kPlannedTokens * d / documents));
    }
    SelectBlocks select(MobaOptions const& gate = kGate) const {
        return {.chosen_THS = {}, .q_THK = q, .k_TGK = k, .cu_seqlens = borders, .selection = gate};
    }
    AttentionForward forward() const {
        return {
            .o_THK = {}, .lse_TH = {}, .q_THK = q, .k_TGK = k, .v_TGK = k, .cu_seqlens = borders, .attended = sparse};
    }
    AttentionBackward backward() const {
        return {.dq_THK = {},
                .dk_TGK = {},
                .dv_TGK = {},
                .do_THK = {},
                .q_THK = q,
                .k_TGK = k,
                .v_TGK = k,
                .o_THK = {},
                .lse_TH = {},
                .cu_seqlens = borders,
                .attended = sparse};
    }
    std::vector<int32_t> borders;
    ConstView q{nullptr, DType::bf16, {kPlannedTokens, 8, 64}};
    ConstView k{nullptr, DType::bf16, {kPlannedTokens, 2, 64}};
    BlockSparse sparse{
        .budget = {.block_size = kGate.block_size, .top_k = kGate.top_k}, .chosen_THS = {}, .routing_L = {}};
};

TEST(AttentionPlans, AreMadeOnceForAShape) {
    AttentionPlans plans(KernelArch::sm90, true, kAttentionScratchBytes);
    Pack const pack(2), later(2), other(3);
    BlockSparsePlan const* const forward = &plans.of(pack.forward());
    BlockSparsePlan const* const backward = &plans.of(pack.backward());
    MobaGatePlan const* const gate = &plans.of(pack.select());
    EXPECT_EQ(&plans.of(later.forward()), forward);
    EXPECT_EQ(&plans.of(later.backward()), backward);
    EXPECT_EQ(&plans.of(later.select()), gate);
    EXPECT_NE(forward, backward);

    EXPECT_NE(&plans.of(other.forward()), forward);
    EXPECT_NE(&plans.of(other.select()), gate);
    EXPECT_NE(&plans.of(pack.select({.block_size = 128, .top_k = 3, .force_previous = true})), gate);
    EXPECT_EQ(&plans.of(pack.forward()), forward) << "while others are made";
    EXPECT_EQ(&plans.of(pack.select()), gate);
}

TEST(AttentionPlans, AreThoseOfTheTaskAndTheOptions) {
    for (bool const deterministic : {true, false}) {
        AttentionPlans plans(KernelArch::sm90, deterministic, kAttentionScratchBytes / 2);
        BlockSparsePlan const& plan = plans.of(Pack(2).backward());
        EXPECT_EQ(plan.task, AttentionTask::backward);
        EXPECT_EQ(plan.shape.deterministic, deterministic);
        EXPECT_EQ(plan.shape.arch, KernelArch::sm90);
        EXPECT_EQ(plan.shape.documents, 2);
        EXPECT_EQ(plan.scratch_bytes, plan_attention(plan.shape, plan.task, kAttentionScratchBytes / 2).scratch_bytes);
        MobaGatePlan const& gate = plans.of(Pack(2).select());
        EXPECT_EQ(gate.options, kGate);
        EXPECT_EQ(gate.shape.top_k, kGate.top_k);
    }
}

TEST(AttentionPlans, OfManyShapesTheLatestAreKept) {
    AttentionPlans plans(KernelArch::sm90, true, kAttentionScratchBytes);
    for (int64_t documents = 1; documents <= 200; ++documents) {
        Pack const pack(documents);
        EXPECT_EQ(plans.of(pack.forward()).shape.documents, documents);
        EXPECT_EQ(plans.of(pack.select()).shape.documents, documents);
    }
}

TEST(AttentionPlans, RefuseWhatTheKernelsDoNotTake) {
    AttentionPlans plans(KernelArch::sm90, true, kAttentionScratchBytes);
    EXPECT_THROW(plans.of(Pack(2).select({.block_size = 128, .top_k = 65})), Error);
}

TEST(AttentionPlans, WarnOfManyPassesAndSayWhichBudgetHelps) {
    Pack pack(1);
    pack.borders = {0, 1 << 20};
    pack.q.shape = {1 << 20, 32, 128};
    pack.k.shape = {1 << 20, 8, 128};
    pack.sparse.budget = {.block_size = 512, .top_k = 4};
    std::vector<std::string> lines;
    log::mirror([&](std::string const& line) { lines.push_back(line); });
    size_t const budget = size_t{2} << 30;
    AttentionPlans plans(KernelArch::sm90, true, budget);
    int64_t const passes = plans.of(pack.backward()).passes();
    plans.of(pack.backward());
    AttentionPlans(KernelArch::sm90, true, 2 * budget).of(pack.backward());
    log::mirror({});
    ASSERT_GT(passes, 1000);
    ASSERT_EQ(lines.size(), 1u) << "once for a shape, and not where the budget suffices";
    EXPECT_THAT(lines[0], HasSubstr(fmt::format("MoBA's backward takes {} passes", passes)));
    EXPECT_THAT(lines[0], HasSubstr("train.moba_scratch_mib=4096"));
}

TEST(AttentionPlans, DeterministicHeadsThatOnlyCudnnTakesAreRefusedByThatName) {
    if (!build_uses_cudnn()) GTEST_SKIP() << "built without cuDNN";
    Pack pack(1);
    pack.q.shape = {kPlannedTokens, 8, 256};
    pack.k.shape = {kPlannedTokens, 2, 256};
    pack.sparse.budget = {.block_size = kPlannedTokens, .top_k = 1};
    AttentionPlans plans(KernelArch::sm90, true, kAttentionScratchBytes);
    try {
        plans.of(pack.backward());
        FAIL() << "accepted";
    } catch (Error const& error) {
        EXPECT_THAT(error.what(), HasSubstr("`deterministic: true`"));
    }
}

}  // namespace
}  // namespace perigee
