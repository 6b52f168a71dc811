#include "eval/position.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/philox.h"

namespace perigee {
namespace {

Batch documents(std::vector<int64_t> const& lengths, int64_t vocab, uint64_t seed) {
    Philox const random(seed, Purpose::mock_data, 1);
    Batch batch;
    batch.cu_seqlens = {0};
    for (int64_t const length : lengths) {
        for (int64_t t = 0; t < length; ++t) {
            auto const i = static_cast<uint64_t>(batch.tokens());
            batch.ids_T.push_back(static_cast<int32_t>(random.below(3 * i, static_cast<uint64_t>(vocab))));
            batch.targets_T.push_back(static_cast<int32_t>(random.below(3 * i + 1, static_cast<uint64_t>(vocab))));
            batch.weights_T.push_back(0.5f * static_cast<float>(random.below(3 * i + 2, 3)));
            batch.positions_T.push_back(static_cast<int32_t>(t));
        }
        batch.cu_seqlens.push_back(static_cast<int32_t>(batch.tokens()));
    }
    return batch;
}

/// By looking at every earlier place of the document, latest first.
Repeat looked_up(Batch const& batch, int64_t t, int64_t context, int64_t distance) {
    int64_t const begin = *std::prev(std::ranges::upper_bound(batch.cu_seqlens, static_cast<int32_t>(t)));
    auto const ids = batch.ids_T.begin();
    if (t - begin + 1 < context) return Repeat::fresh;
    for (int64_t s = t - 1; s - context + 1 >= begin; --s)
        if (std::equal(ids + s - context + 1, ids + s + 1, ids + t - context + 1))
            return t - s >= distance ? Repeat::far : Repeat::near;
    return Repeat::fresh;
}

TEST(Repeats, AreThoseThatLookingBackFinds) {
    Batch const batch = documents({1, 2, 400, 3, 250}, 5, 1);
    for (int64_t const context : {1, 2, 3})
        for (int64_t const distance : {1, 20, 60}) {
            auto const found = repeats(batch, context, distance);
            int64_t far = 0, near = 0;
            for (int64_t t = 0; t < batch.tokens(); ++t) {
                ASSERT_EQ(found[static_cast<size_t>(t)], looked_up(batch, t, context, distance)) << "token " << t;
                far += found[static_cast<size_t>(t)] == Repeat::far;
                near += found[static_cast<size_t>(t)] == Repeat::near;
            }
            EXPECT_GT(far + near, 0);
        }
    auto const none = repeats(batch, 401, 1);
    EXPECT_EQ(std::ranges::count(none, Repeat::fresh), batch.tokens());
}

TEST(PositionEdges, AreHalvesOrThoseAskedFor) {
    EXPECT_EQ(position_edges({}, 8192), (std::vector<int64_t>{64, 128, 256, 512, 1024, 2048, 4096, 8192}));
    EXPECT_EQ(position_edges({}, 5), (std::vector<int64_t>{1, 2, 5}));
    EXPECT_EQ(position_edges({.position_edges = {10, 30}}, 64), (std::vector<int64_t>{10, 30, 64}));
    EXPECT_EQ(position_edges({.position_edges = {10, 64, 90}}, 64), (std::vector<int64_t>{10, 64}));
}

TEST(PositionSums, AddUpByClassAndBin) {
    Batch const batch = documents({30, 70, 100}, 4, 2);
    auto const repeat = repeats(batch, 2, 30);
    std::vector<double> nll;
    for (size_t t = 0; t < batch.weights_T.size(); ++t)
        if (batch.weights_T[t] != 0) nll.push_back(0.01 * static_cast<double>(t) + 1);
    std::vector<int32_t> const bytes = {1, 0, 3};  // id 3 stands for none
    PositionSums sums({10, 40, 100});
    sums.add(batch, repeat, nll, bytes);
    double weight = 0, loss = 0;
    int64_t begin = 0;
    for (size_t bin = 0; bin < 3; ++bin) {
        int64_t const end = sums.edges()[bin];
        for (Repeat const wanted : {Repeat::fresh, Repeat::near, Repeat::far}) {
            LossSum expected;
            for (size_t t = 0; t < batch.weights_T.size(); ++t) {
                if (repeat[t] != wanted || batch.positions_T[t] < begin || batch.positions_T[t] >= end) continue;
                double const w = static_cast<double>(batch.weights_T[t]);
                auto const target = static_cast<size_t>(batch.targets_T[t]);
                expected += {w, w * (0.01 * static_cast<double>(t) + 1), target < 3 ? w * bytes[target] : 0};
            }
            LossSum const found = sums.at(wanted, bin);
            EXPECT_DOUBLE_EQ(found.weight, expected.weight);
            EXPECT_NEAR(found.nll, expected.nll, 1e-9);
            EXPECT_DOUBLE_EQ(found.bytes, expected.bytes);
            weight += found.weight;
            loss += found.nll;
        }
        begin = end;
    }
    EXPECT_GT(weight, 0);
    EXPECT_GT(loss, weight);
}

}  // namespace
}  // namespace perigee
