// Whose kernels compute an attention, by its shape.
#include <gtest/gtest.h>

#include "ops/gpu_attention.h"

namespace perigee {
namespace {

struct BackendPack {
    BackendPack(int64_t documents, int64_t length, int64_t head_dim, int64_t queries = 0)
        : k{nullptr, DType::bf16, {documents * length, 8, head_dim}},
          q{nullptr, DType::bf16, {queries > 0 ? queries : documents * length, 32, head_dim}} {
        for (int64_t d = 0; d <= documents; ++d) borders.push_back(static_cast<int32_t>(d * length));
    }
    AttentionBackend forward(KernelArch arch = KernelArch::sm90) const {
        return attention_backend(
            AttentionForward{.o_THK = {}, .lse_TH = {}, .q_THK = q, .k_TGK = k, .v_TGK = k, .cu_seqlens = borders},
            arch);
    }
    AttentionBackend backward(bool deterministic = false, bool add = false, KernelArch arch = KernelArch::sm90) const {
        return attention_backend(AttentionBackward{.dq_THK = {},
                                                   .dk_TGK = {},
                                                   .dv_TGK = {},
                                                   .do_THK = {},
                                                   .q_THK = q,
                                                   .k_TGK = k,
                                                   .v_TGK = k,
                                                   .o_THK = {},
                                                   .lse_TH = {},
                                                   .cu_seqlens = borders,
                                                   .add_to_dkv = add},
                                 arch, deterministic);
    }
    ConstView k, q;
    std::vector<int32_t> borders;
};

TEST(AttentionBackend, IsDenseForHeadSizesThatWereMeasuredFaster) {
    for (int64_t const dim : {64, 96, 128})
        for (auto const& pack : {BackendPack(1, 32768, dim), BackendPack(8, 1024, dim)}) {
            EXPECT_EQ(pack.forward(), AttentionBackend::dense);
            EXPECT_EQ(pack.backward(), AttentionBackend::dense);
            EXPECT_EQ(pack.backward(true), AttentionBackend::dense) << "deterministic";
        }
}

TEST(AttentionBackend, IsElseCudnnForFullAttentionWhereTheBuildHasIt) {
    AttentionBackend const other = build_uses_cudnn() ? AttentionBackend::cudnn : AttentionBackend::block_sparse;
    for (int64_t const dim : {80, 256}) {
        EXPECT_EQ(BackendPack(1, 32768, dim).forward(), other);
        EXPECT_EQ(BackendPack(1, 32768, dim).backward(), other);
    }
    EXPECT_EQ(BackendPack(1, 32768, 128).forward(KernelArch::sm80), other);
    EXPECT_EQ(BackendPack(1, 32768, 128).backward(false, false, KernelArch::sm80), other);
}

TEST(AttentionBackend, IsBlockSparseForWhatTheOthersDoNotTake) {
    EXPECT_EQ(BackendPack(1, 32768, 128, 16384).forward(), AttentionBackend::block_sparse) << "a range of queries";
    EXPECT_EQ(BackendPack(1, 32768, 128).backward(false, true), AttentionBackend::block_sparse) << "adds to dk and dv";
    EXPECT_EQ(BackendPack(1, 8192, 32).backward(true), AttentionBackend::block_sparse) << "deterministic";
}

TEST(DenseBackwardPlan, TakesAsManyHeadsAtATimeAsFit) {
    DenseAttentionShape shape{.tokens = 131072, .documents = 1, .heads = 32, .kv_heads = 8, .head_dim = 128};
    DenseBackwardPlan const plan(shape);
    EXPECT_EQ(plan.pass_kv_heads, 2);  // 269 MB of dq and 134 MB of dk and dv each
    EXPECT_LT(plan.scratch_bytes, (int64_t{1} << 30) * 9 / 8);
    shape.deterministic = true;
    EXPECT_EQ(DenseBackwardPlan(shape).pass_kv_heads, 3);  // 269 MB of dq
    shape.deterministic = false;
    shape.sums_bytes = 1;
    EXPECT_EQ(DenseBackwardPlan(shape).pass_kv_heads, 1);
    shape.sums_bytes = int64_t{1} << 40;
    EXPECT_EQ(DenseBackwardPlan(shape).pass_kv_heads, 8);
}

TEST(DenseBackwardPlan, TakesOneOrTwoHeadsOfAGroupWhereTheCacheDoesNotHoldTheirRows) {
    DenseAttentionShape shape{.tokens = 32768, .documents = 1, .heads = 32, .kv_heads = 8, .head_dim = 128};
    EXPECT_EQ(DenseBackwardPlan(shape).parts, 2);
    shape.heads = 24;
    EXPECT_EQ(DenseBackwardPlan(shape).parts, 3) << "an odd number of heads";
    shape.heads = 16;
    EXPECT_EQ(DenseBackwardPlan(shape).parts, 2) << "a group of two, at the limit";
    shape.tokens = 32767;
    EXPECT_EQ(DenseBackwardPlan(shape).parts, 1) << "below it";
    shape.heads = 32, shape.tokens = 32768, shape.documents = 4;
    EXPECT_EQ(DenseBackwardPlan(shape).parts, 1) << "short documents";
    shape.documents = 1, shape.deterministic = true;
    EXPECT_EQ(DenseBackwardPlan(shape).parts, 1);
    shape.deterministic = false, shape.window = 4096;
    EXPECT_EQ(DenseBackwardPlan(shape).parts, 1);
    shape.window = 0, shape.head_dim = 96;
    EXPECT_EQ(DenseBackwardPlan(shape).parts, 1) << "heads of 96 gain nothing";
    shape.head_dim = 128, shape.kv_heads = 32;
    EXPECT_EQ(DenseBackwardPlan(shape).parts, 1) << "a group of one";
}

}  // namespace
}  // namespace perigee
