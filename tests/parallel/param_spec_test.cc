#include "parallel/param_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace perigee {

namespace {

/// What runs() must say, element by element: the global index of every element of the shard, in order.
std::vector<int64_t> indices_by_counting(Shard const& shard) {
    std::vector<int64_t> all;
    for (int64_t flat = 0; flat < shard.extent.size(); ++flat) {
        int64_t rest = flat, index = 0, stride = 1;
        for (int dim = shard.global.rank() - 1; dim >= 0; --dim) {
            index += (shard.begin[dim] + rest % shard.extent[dim]) * stride;
            rest /= shard.extent[dim];
            stride *= shard.global[dim];
        }
        all.push_back(index);
    }
    return std::vector<int64_t>(all.begin() + shard.flat_begin, all.begin() + shard.flat_begin + shard.flat_count);
}

std::vector<int64_t> indices_by_runs(Shard const& shard) {
    std::vector<int64_t> all;
    for (Shard::Run const& run : shard.runs()) {
        EXPECT_EQ(run.local, std::ssize(all));
        EXPECT_GT(run.count, 0);
        for (int64_t i = 0; i < run.count; ++i) all.push_back(run.global + i);
    }
    return all;
}

TEST(Shard, RunsVisitEveryElementInOrder) {
    for (Shard const& box : {
             Shard{.global = {6}, .begin = {2}, .extent = {3}},
             Shard{.global = {6, 5}, .begin = {0, 0}, .extent = {6, 5}},
             Shard{.global = {6, 5}, .begin = {2, 0}, .extent = {3, 5}},
             Shard{.global = {6, 5}, .begin = {0, 1}, .extent = {6, 2}},
             Shard{.global = {6, 5}, .begin = {4, 3}, .extent = {2, 2}},
             Shard{.global = {3, 4, 5}, .begin = {1, 2, 0}, .extent = {2, 2, 5}},
             Shard{.global = {2, 3, 4, 5}, .begin = {0, 1, 0, 2}, .extent = {2, 2, 4, 1}},
         }) {
        for (int64_t begin = 0; begin < box.extent.size(); ++begin) {
            for (int64_t end = begin; end <= box.extent.size(); ++end) {
                Shard range = box;
                range.flat_begin = begin;
                range.flat_count = end - begin;
                ASSERT_EQ(indices_by_runs(range), indices_by_counting(range))
                    << box.global.str() << " from " << box.begin.str() << " of " << box.extent.str() << ", [" << begin
                    << ", " << end << ")";
            }
        }
    }
}

TEST(Shard, RunsAreAsLongAsTheyCanBe) {
    EXPECT_EQ(whole_shard({4, 3, 2}).runs().size(), 1u);
    EXPECT_EQ((Shard{.global = {8, 6}, .begin = {2, 0}, .extent = {4, 6}, .flat_count = 24}.runs().size()), 1u);
    EXPECT_EQ((Shard{.global = {8, 6}, .begin = {0, 3}, .extent = {8, 3}, .flat_count = 24}.runs().size()), 8u);
}

TEST(Shard, AWholeScalarIsOneRun) {
    Shard const scalar = whole_shard({});
    EXPECT_EQ(indices_by_runs(scalar), std::vector<int64_t>{0});
}

std::vector<ParamSpec> example() {
    return {{.name = "q", .shape = {8, 6}, .cut = Cut::rows},    {.name = "k", .shape = {4, 6}, .cut = Cut::rows},
            {.name = "q.bias", .shape = {8}, .cut = Cut::rows},  {.name = "k.bias", .shape = {4}, .cut = Cut::rows},
            {.name = "o", .shape = {6, 8}, .cut = Cut::columns}, {.name = "norm", .shape = {6}}};
}

TEST(ParamLayout, RanksTogetherHoldEveryElementOnce) {
    for (int size : {1, 2, 4}) {
        for (size_t tensor = 0; tensor < 5; ++tensor) {
            std::vector<int64_t> seen;
            for (int rank = 0; rank < size; ++rank) {
                ParamLayout const layout(example(), size, rank);
                std::vector<int64_t> const mine = indices_by_runs(layout.entries()[tensor].shard);
                seen.insert(seen.end(), mine.begin(), mine.end());
            }
            std::vector<int64_t> all(static_cast<size_t>(example()[tensor].shape.size()));
            std::iota(all.begin(), all.end(), 0);
            EXPECT_THAT(seen, ::testing::UnorderedElementsAreArray(all));
        }
    }
}

TEST(ParamLayout, PlacesPartsWithoutGaps) {
    ParamLayout const layout(example(), 2, 1);
    int64_t offset = 0;
    for (ParamLayout::Entry const& entry : layout.entries()) {
        EXPECT_EQ(entry.offset, offset);
        offset += entry.local.size();
    }
    EXPECT_EQ(layout.size(), offset);
    EXPECT_EQ(layout.size(), 24 + 12 + 4 + 2 + 24 + 6);
    EXPECT_EQ(layout.global_size(), 48 + 24 + 8 + 4 + 48 + 6);
    EXPECT_EQ(layout.entry("o").local, (Shape{6, 4}));
    EXPECT_EQ(layout.entry("o").shard.begin, (Shape{0, 4}));
    EXPECT_EQ(layout.entry("norm").local, (Shape{6}));
}

TEST(ParamLayout, NeighboursMakeOneMatrix) {
    ParamLayout const layout(example(), 2, 0);
    std::vector<float> flat(static_cast<size_t>(layout.size()));
    std::iota(flat.begin(), flat.end(), 0.0f);
    TensorView const view(flat.data(), {layout.size()});
    TensorView const qk = layout.place("q", "k").in(view);
    EXPECT_EQ(qk.shape, (Shape{6, 6}));
    EXPECT_EQ(qk.as<float>()[0], 0);
    EXPECT_EQ(layout.view(view, "k").as<float>()[0], 24);
    EXPECT_EQ(layout.place("q.bias", "k.bias").in(view).shape, (Shape{6}));
    EXPECT_EQ(layout.place("q.bias", "k.bias").in(view).as<float>()[5], 41);
    EXPECT_EQ(layout.view(view, "o").shape, (Shape{6, 4}));
}

TEST(ParamLayout, UnitsTakeMultiplesAndTheirTensorsKeepTheirOrder) {
    std::vector<ParamSpec> const specs = {
        {.name = "a", .shape = {5}}, {.name = "b", .shape = {8}, .unit = 1}, {.name = "c", .shape = {3}, .unit = 1}};
    ParamLayout const layout(specs, 1, 0, 4);
    ASSERT_EQ(layout.units(), 2);
    EXPECT_EQ(layout.unit(0), (FlatRange{0, 8}));
    EXPECT_EQ(layout.unit(1), (FlatRange{8, 20}));
    EXPECT_EQ(layout.gap(0), (FlatRange{5, 8}));
    EXPECT_EQ(layout.gap(1), (FlatRange{19, 20}));
    EXPECT_EQ(layout.size(), 20);
    EXPECT_EQ(layout.global_size(), 16);
    EXPECT_EQ(layout.place("b", "c").offset, 0);
    EXPECT_EQ(layout.place("b", "c").shape, (Shape{11}));
    EXPECT_EQ(layout.place("c").offset, 8);
    EXPECT_EQ(ParamLayout(specs, 1, 0).size(), 16) << "no gaps unless they are asked for";
    EXPECT_THROW(layout.place("a", "b"), Error) << "of two units";
    EXPECT_THROW(ParamLayout({{.name = "a", .shape = {1}, .unit = 1}}, 1, 0), Error);
    EXPECT_THROW(ParamLayout({specs[1], specs[0]}, 1, 0), Error);
    EXPECT_TRUE(UnitPlace().in({}).empty());
}

TEST(ParamLayout, RefusesWhatDoesNotFit) {
    try {
        ParamLayout(example(), 3, 0);
        FAIL() << "8 rows over 3 ranks";
    } catch (Error const& e) {
        EXPECT_EQ(e.category(), Category::config);
        EXPECT_THAT(e.what(), ::testing::AllOf(::testing::HasSubstr("`q`"), ::testing::HasSubstr("8"),
                                               ::testing::HasSubstr("3")));
    }
    ParamLayout const layout(example(), 1, 0);
    std::vector<float> flat(static_cast<size_t>(layout.size()));
    TensorView const view(flat.data(), {layout.size()});
    EXPECT_THROW(layout.place("q", "o").in(view), Error);
    EXPECT_THROW(layout.place("k", "q").in(view), Error);
    EXPECT_THROW(layout.view(view, "v"), Error);
    EXPECT_THROW(layout.view(view.rows(0, 5), "q"), Error);
    EXPECT_THROW(ParamLayout({{.name = "a", .shape = {1}}, {.name = "a", .shape = {1}}}, 1, 0), Error);
}

}  // namespace

}  // namespace perigee
