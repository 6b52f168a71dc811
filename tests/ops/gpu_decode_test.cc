// Decoding on the GPU, held to the expectations of the CPU: choices in every slot, attention within bf16's rounding.
#include "ops/decode_expectations.h"
#include "ops/project_case.h"

namespace perigee::testing {
namespace {

constexpr double kRounding = 5e-3;

using GpuDecode = GpuTest;

TEST_F(GpuDecode, SelectsAndAttendsAsTraining) {
    for (DecodeCase const& c : decode_cases()) expect_training(gpu(), c, kRounding);
}

TEST_F(GpuDecode, SelectsByEveryRule) {
    for (Selection const& rule : decode_rules()) expect_training(gpu(), with_rule(rule), kRounding);
}

TEST_F(GpuDecode, TakesEveryHeadSize) {
    for (int64_t const dim : {32, 96}) {
        DecodeCase c = with_rule(MobaOptions{.block_size = 32, .top_k = 3});
        c.head_dim = dim;
        expect_training(gpu(), c, kRounding);
    }
}

TEST_F(GpuDecode, TakesManyBlocks) {
    DecodeCase c{.lengths = {16 * 1000 + 3, 16 * 300}};
    c.page_size = c.block_size = 16;
    for (MobaOptions const& rule : {MobaOptions{.block_size = 16, .top_k = 12},
                                    {.block_size = 16, .top_k = 3, .force_previous = true},
                                    {.block_size = 16, .top_k = 6, .force_first = true},
                                    {.block_size = 16, .top_k = 64}}) {
        c.selection = rule;
        expect_training(gpu(), c, kRounding);
    }
    c.heads = 40, c.kv_heads = 1, c.head_dim = 128;
    for (int64_t const top_k : {3, 8, 16}) {
        c.selection = MobaOptions{.block_size = 16, .top_k = top_k, .selection = MobaSelection::per_group};
        expect_training(gpu(), c, kRounding);
    }
    c = {.lengths = {16 * 33'000 + 3}, .heads = 2, .kv_heads = 1, .head_dim = 32, .page_size = 16, .block_size = 16};
    c.selection = MobaOptions{.block_size = 16, .top_k = 6};
    expect_training(gpu(), c, kRounding);
}

TEST_F(GpuDecode, AppendWritesTheNewestRowsAndNoOthers) { expect_append_to_write(gpu()); }

TEST_F(GpuDecode, TheFirstHeadsNumberCounts) { expect_first_head_to_count(gpu()); }

TEST_F(GpuDecode, AppendedTokensLeaveTheMeansOfPooling) {
    for (int32_t const block : {32, 256, 512}) {
        expect_means_of_appends(gpu(), false, block);
        expect_means_of_appends(gpu(), true, block);
    }
}

TEST_F(GpuDecode, ProjectsAsTheOperationsThatItIsMadeOf) {
    for (ProjectCase const& c : project_cases()) expect_projection(gpu(), c, kRounding);
}

TEST_F(GpuDecode, NormedProductsAreTheOperationsThatTheyAreMadeOf) { expect_normed_products(gpu(), kRounding); }

TEST_F(GpuDecode, EnoughSlotsEqualFullAttentionInEveryBit) { expect_covering_equals_full(gpu()); }

TEST_F(GpuDecode, ResultsDependNeitherOnPagesNorOnOtherSequences) { expect_independence(gpu()); }

TEST_F(GpuDecode, SelectsAndAttendsInOneOperation) {
    for (int64_t const dim : {64, 128})
        for (int32_t const block : {64, 512}) {  // the kernel pools in two ways
            DecodeCase c{.lengths = {13 * block - 1, -1, 300, 7 * block + 5, 6 * block - 1}};
            c.selection = MobaOptions{.block_size = block, .top_k = 3};
            c.page_size = c.block_size = block, c.head_dim = dim;
            c.scale = 1 / std::sqrt(static_cast<double>(dim));
            expect_both_as_one(gpu(), c);
            c.lengths = {-1, 6 * block - 1, 3};  // the first text is idle
            expect_both_as_one(gpu(), c);
        }
    for (int64_t const blocks : {300, 511, 600}) {  // several rounds of scores; more than one kernel takes
        DecodeCase c{.lengths = {static_cast<int32_t>(16 * blocks - 3), 16 * 200 - 1}};
        c.selection = MobaOptions{.block_size = 16, .top_k = 4};
        c.page_size = c.block_size = 16;
        expect_both_as_one(gpu(), c);
    }
}

TEST_F(GpuDecode, DamageShows) { expect_damage_to_show(gpu(), kRounding); }

TEST_F(GpuDecode, RepeatsInEveryBit) {
    DecodeCase const c{.lengths = {333, 4, 800}};
    DecodeLab lab(gpu(), c);
    lab.pool();
    lab.append();
    auto const chosen = lab.select();
    Values const sparse = lab.attend(false), full = lab.attend(true);
    for (int again = 0; again < 3; ++again) {
        EXPECT_EQ(lab.select(), chosen);
        EXPECT_EQ(lab.attend(false), sparse);
        EXPECT_EQ(lab.attend(true), full);
    }
}

}  // namespace
}  // namespace perigee::testing
