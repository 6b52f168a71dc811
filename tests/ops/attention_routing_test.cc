// Memory for the routing table that a forward leaves to the backward: what packs of as many tokens take, and which have
// none.
#include <gtest/gtest.h>

#include "ops/gpu_attention.h"

namespace perigee {
namespace {

/// Of 16K tokens in `documents` of about the same length, 8 heads in groups of 4.
int64_t routing_size(int64_t documents, int64_t head_dim, BlockBudget const& budget) {
    constexpr int64_t kTokens = 16384;
    std::vector<int32_t> borders;
    for (int64_t d = 0; d <= documents; ++d) borders.push_back(static_cast<int32_t>(kTokens * d / documents));
    return gpu_routing_size({kTokens, 8, head_dim}, {kTokens, 2, head_dim}, borders, budget);
}

TEST(RoutingSize, IsTheSameUnlessDocumentsAreShort) {
    int64_t const size = routing_size(1, 64, {128, 8});
    EXPECT_GT(size, 16384 * 8 * 7);      // an entry of every choice
    EXPECT_LT(size, 16384 * 8 * 7 * 2);  // and not much else
    EXPECT_EQ(routing_size(5, 64, {128, 8}), size);
    EXPECT_EQ(routing_size(32, 64, {128, 8}), size);  // of 4 blocks each
    EXPECT_EQ(routing_size(33, 64, {128, 8}), 0);
    EXPECT_GE(size * 4, static_cast<int64_t>(routing_bytes({.tokens = 16384,
                                                            .queries = 16384,
                                                            .documents = 32,
                                                            .heads = 8,
                                                            .kv_heads = 2,
                                                            .head_dim = 64,
                                                            .block_size = 128,
                                                            .top_k = 8})));
}

TEST(RoutingSize, IsNoneForWhatTheKernelsRefuse) {
    EXPECT_EQ(routing_size(1, 80, {.block_size = 512, .top_k = 1}), 0);
    EXPECT_EQ(routing_size(1, 64, {.block_size = 512, .top_k = 65}), 0);
}

}  // namespace
}  // namespace perigee
