// Full attention on the CPU against the fp64 reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/attention_case.h"

namespace perigee {
namespace {

using namespace testing;
using ::testing::TestWithParam;

/// Documents shorter than a tile, of exactly one, of several and a bit, and empty ones.
std::vector<int32_t> const kRaggedTiles = {0, 1, 1, 130, 258, 258, 258, 700, 703};

class AttentionOfDocuments : public TestWithParam<AttentionCase> {};

TEST_P(AttentionOfDocuments, MatchesTheReference) {
    auto const problem = make_problem(GetParam());
    auto const reference = reference_attention(problem);
    EXPECT_LT(worst_error(HostAttention<float>().attend(problem), reference), kTolerance32);
    EXPECT_LT(worst_error(HostAttention<double>().attend(problem), reference), kTolerance64);
}

INSTANTIATE_TEST_SUITE_P(
    HeadsAndSizes, AttentionOfDocuments,
    ::testing::Values(AttentionCase{.cu_seqlens = kRaggedTiles, .heads = 4, .kv_heads = 2, .head_dim = 64, .seed = 1},
                      AttentionCase{.cu_seqlens = kRaggedTiles, .heads = 2, .kv_heads = 2, .head_dim = 32, .seed = 2},
                      AttentionCase{.cu_seqlens = kRaggedTiles, .heads = 3, .kv_heads = 1, .head_dim = 96, .seed = 3},
                      AttentionCase{.cu_seqlens = {0, 300}, .heads = 2, .kv_heads = 1, .head_dim = 128, .seed = 4},
                      AttentionCase{.cu_seqlens = {0, 513}, .heads = 1, .kv_heads = 1, .head_dim = 5, .seed = 5}));

TEST(FullAttentionEdges, NoTokensAreFine) {
    for (auto const& borders : {std::vector<int32_t>{0}, {0, 0}, {0, 0, 0}}) {
        auto const y = HostAttention<float>().attend(make_problem({.cu_seqlens = borders}));
        EXPECT_TRUE(y.o.empty() && y.dk.empty());
    }
}

TEST(FullAttentionEdges, DocumentsDoNotSeeTheirNeighbours) {
    auto const packed = make_problem({.cu_seqlens = {0, 150, 400}});
    auto changed = packed;
    for (size_t i = 0; i < changed.k.size() * 150 / 400; ++i) changed.k[i] = changed.v[i] = 1e3;
    auto const a = HostAttention<float>().attend(packed), b = HostAttention<float>().attend(changed);
    size_t const second = a.o.size() * 150 / 400, second_k = a.dk.size() * 150 / 400;
    EXPECT_TRUE(std::equal(a.o.begin() + second, a.o.end(), b.o.begin() + second));
    EXPECT_TRUE(std::equal(a.dk.begin() + second_k, a.dk.end(), b.dk.begin() + second_k));
    EXPECT_FALSE(std::equal(a.o.begin(), a.o.begin() + second, b.o.begin()));
}

TEST(FullAttentionEdges, LargeScoresDoNotOverflow) {
    auto problem = make_problem({.cu_seqlens = {0, 400}});
    for (double& x : problem.q) x *= 64;  // scores of several hundred, whose plain exponentials overflow
    auto const reference = reference_attention(problem);
    auto const y = HostAttention<float>().attend(problem);
    EXPECT_GT(*std::max_element(reference.lse.begin(), reference.lse.end()), 100);
    EXPECT_LT(relative_error(y.o, reference.o), 1e-4);
    EXPECT_LT(relative_error(y.lse, reference.lse), 1e-6);
    EXPECT_LT(relative_error(y.dv, reference.dv), 1e-4);
}

TEST(FullAttentionEdges, ABadNumberSpreadsInsteadOfHiding) {
    auto problem = make_problem({.cu_seqlens = {0, 40, 80}, .heads = 1, .kv_heads = 1});
    problem.q[10 * problem.head_dim] = std::nan("");
    auto const y = HostAttention<float>().attend(problem);
    EXPECT_TRUE(std::isnan(y.o[10 * problem.head_dim]));
    EXPECT_TRUE(std::isnan(y.lse[10]));
    EXPECT_TRUE(std::isnan(y.dk[0]));
    EXPECT_FALSE(std::isnan(y.lse[9]));
}

TEST(FullAttentionEdges, ResultsAreBitwiseRepeatableOnAnyNumberOfThreads) {
    auto const problem = make_problem({.cu_seqlens = kRaggedTiles, .head_dim = 64});
    auto const once = HostAttention<float>(2).attend(problem);
    EXPECT_EQ(HostAttention<float>(2).attend(problem), once);
    EXPECT_EQ(HostAttention<float>(1).attend(problem), once);
    EXPECT_EQ(HostAttention<float>(5).attend(problem), once);
}

TEST(FullAttentionEdges, WrongShapesBordersAndScalesAreRefused) {
    auto const forward = [](std::vector<int32_t> const& borders, int64_t lse_rows, double scale) {
        std::vector<float> o(10 * 4 * 32), q(o.size(), 0.5f), k(10 * 2 * 32, 0.5f), lse(10 * 4);
        HostAttention<float> host;
        host.ops().attention_forward({.o_THK = {o.data(), {10, 4, 32}},
                                      .lse_TH = {lse.data(), {lse_rows, 4}},
                                      .q_THK = {q.data(), {10, 4, 32}},
                                      .k_TGK = {k.data(), {10, 2, 32}},
                                      .v_TGK = {k.data(), {10, 2, 32}},
                                      .cu_seqlens = borders,
                                      .scale = scale});
    };
    EXPECT_NO_THROW(forward({0, 10}, 10, 1));
    for (auto const& borders : {std::vector<int32_t>{}, {1, 10}, {0, 9}, {0, 7, 5, 10}})
        EXPECT_THROW(forward(borders, 10, 1), Error);
    EXPECT_THROW(forward({0, 10}, 9, 1), Error);
    for (double const scale : {0.0, -0.125, std::nan(""), std::numeric_limits<double>::infinity()})
        EXPECT_THROW(forward({0, 10}, 10, scale), Error) << scale;
}

}  // namespace
}  // namespace perigee
