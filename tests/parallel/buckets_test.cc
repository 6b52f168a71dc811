#include "parallel/buckets.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "support/thread_comm.h"

namespace perigee {
namespace {

using testing::run_ranks;

constexpr int64_t kTargets[] = {1, 100, 512, 1 << 20};

/// One tensor a unit.
std::vector<ParamSpec> units_of(std::vector<int64_t> const& sizes) {
    std::vector<ParamSpec> specs;
    for (int64_t size : sizes)
        specs.push_back(
            {.name = fmt::format("x{}", specs.size()), .shape = {size}, .unit = static_cast<int>(specs.size())});
    return specs;
}
std::vector<std::vector<int64_t>> const kModels = {{1}, {2, 7}, {63, 64, 65}, {1000, 3, 4099}};

TEST(Buckets, FollowOneAnotherStayInTheirUnitAndDivide) {
    for (auto const& sizes : kModels)
        for (int64_t target : kTargets)
            for (int ranks = 1; ranks <= 9; ++ranks) {
                ParamLayout const layout(units_of(sizes), 1, 0, unit_multiple(ranks));
                Buckets const buckets(layout, target, ranks);
                int64_t end = 0;
                for (int unit = 0; unit < layout.units(); ++unit) {
                    auto const [first, last] = buckets.of_unit(unit);
                    ASSERT_EQ(buckets.range(first).begin, layout.unit(unit).begin);
                    ASSERT_EQ(buckets.range(last - 1).end, layout.unit(unit).end);
                    for (int64_t b = first; b < last; ++b) {
                        FlatRange const range = buckets.range(b);
                        ASSERT_EQ(range.begin, end);
                        ASSERT_GT(range.size(), 0);
                        ASSERT_LE(range.size(), std::max<int64_t>(target, unit_multiple(ranks)));
                        ASSERT_EQ(range.size() % ranks, 0);
                        end = range.end;
                    }
                }
                ASSERT_EQ(end, layout.size());
            }
}

TEST(Buckets, GiveEveryElementToExactlyOneRankAndTheSameNumberToEach) {
    for (auto const& sizes : kModels)
        for (int64_t target : kTargets)
            for (int ranks = 1; ranks <= 9; ++ranks) {
                ParamLayout const layout(units_of(sizes), 1, 0, unit_multiple(ranks));
                Buckets const buckets(layout, target, ranks);
                std::vector<int> owners(static_cast<size_t>(layout.size()));
                for (int rank = 0; rank < ranks; ++rank) {
                    int64_t owned = 0, end = -1;
                    for (FlatRange const& range : buckets.shares(rank)) {
                        ASSERT_GT(range.begin, end) << "in order, neighbours joined";
                        for (int64_t i = range.begin; i < range.end; ++i) ++owners[static_cast<size_t>(i)];
                        owned += range.size();
                        end = range.end;
                    }
                    ASSERT_EQ(owned, layout.size() / ranks);
                }
                ASSERT_EQ(owners, std::vector<int>(owners.size(), 1)) << ranks << " ranks by " << target;
            }
}

/// Uncut parameters first, last and between, of sizes that divide by nothing.
std::vector<ParamSpec> some_params() {
    return {{.name = "first", .shape = {5}, .decay = false},
            {.name = "rows", .shape = {8, 13}, .cut = Cut::rows},
            {.name = "middle", .shape = {7, 3}, .unit = 1},
            {.name = "columns", .shape = {9, 4}, .cut = Cut::columns, .unit = 1},
            {.name = "last", .shape = {3}, .decay = false, .unit = 2}};
}

TEST(Ownership, CoversEveryElementOfEveryTensorOnceOverAllMeshes) {
    for (int world = 1; world <= 8; ++world) {
        for (int64_t tp : {1, 2, 4}) {
            for (int64_t cp : {1, 2}) {
                if (world % (tp * cp) != 0) continue;
                for (int64_t target : {1, 20, 1000}) {
                    std::map<std::string, std::vector<int>> counts;
                    for (auto const& spec : some_params())
                        counts[spec.name].assign(static_cast<size_t>(spec.shape.size()), 0);
                    std::mutex mutex;
                    run_ranks(world, [&](HostComm& comm) {
                        Mesh const mesh({.tensor = tp, .context = cp}, comm);
                        ParamLayout const layout(some_params(), mesh.shape().tp, mesh.tp_rank(),
                                                 unit_multiple(mesh.dp_cp().size()));
                        auto const mine = Sharding(layout, mesh, ShardStage::optimizer, target).ownership;
                        std::lock_guard const lock(mutex);
                        for (auto const& entry : layout.entries())
                            for (auto const& run : entry.shard.runs())
                                for (int64_t i = 0; i < run.count; ++i)
                                    for (FlatRange const& range : mine.owned) {
                                        int64_t const at = entry.offset + run.local + i;
                                        if (range.begin <= at && at < range.end)
                                            ++counts[entry.spec.name][static_cast<size_t>(run.global + i)];
                                    }
                    });
                    for (auto const& [name, count] : counts)
                        ASSERT_EQ(count, std::vector<int>(count.size(), 1))
                            << name << ", world " << world << " tp " << tp << " cp " << cp << " target " << target;
                }
            }
        }
    }
}

TEST(Ownership, WithoutShardingEveryRankUpdatesEverything) {
    run_ranks(4, [](HostComm& comm) {
        Mesh const mesh({.tensor = 2}, comm);
        ParamLayout const layout(some_params(), 2, mesh.tp_rank(), unit_multiple(2));
        EXPECT_EQ(Sharding(layout, mesh, ShardStage::none, 20).ownership.updated, std::vector{layout.whole()});
        for (ShardStage stage : {ShardStage::automatic, ShardStage::optimizer, ShardStage::weights})
            EXPECT_EQ(Sharding(layout, mesh, stage, 20).ownership.updated,
                      Buckets(layout, 20, 2).shares(mesh.dp_cp().rank()));
    });
}

}  // namespace
}  // namespace perigee
