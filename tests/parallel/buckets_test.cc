#include "parallel/buckets.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <numeric>

#include "support/random.h"
#include "support/thread_comm.h"

namespace perigee {
namespace {

using testing::random_normal;
using testing::run_ranks;

constexpr int64_t kSizes[] = {1, 2, 7, 8, 63, 64, 65, 1000, 1024, 4099};
constexpr int64_t kTargets[] = {1, 3, 8, 100, 512, 1 << 20};

TEST(Buckets, FollowOneAnotherAndNeverExceedTheTarget) {
    for (int64_t size : kSizes) {
        for (int64_t target : kTargets) {
            for (int ranks = 1; ranks <= 9; ++ranks) {
                Buckets const buckets(size, target, ranks);
                int64_t end = 0;
                for (int64_t b = 0; b < buckets.count(); ++b) {
                    FlatRange const range = buckets.range(b);
                    ASSERT_EQ(range.begin, end);
                    ASSERT_GT(range.size(), 0);
                    ASSERT_LE(range.size(), std::max<int64_t>(target, ranks));
                    ASSERT_TRUE(buckets.divides(b) || (b + 1 == buckets.count() && range.size() < ranks));
                    end = range.end;
                }
                ASSERT_EQ(end, size);
                ASSERT_LE(buckets.count(), size / (std::max<int64_t>(target, ranks) / ranks * ranks) + 2);
            }
        }
    }
}

TEST(Buckets, GiveEveryElementToExactlyOneRankAndAboutTheSameToEach) {
    for (int64_t size : kSizes) {
        for (int64_t target : kTargets) {
            for (int ranks = 1; ranks <= 9; ++ranks) {
                Buckets const buckets(size, target, ranks);
                std::vector<int> owners(static_cast<size_t>(size));
                for (int rank = 0; rank < ranks; ++rank) {
                    int64_t owned = 0, end = -1;
                    for (FlatRange const& range : buckets.shares(rank)) {
                        ASSERT_GT(range.begin, end) << "in order, neighbours joined";
                        for (int64_t i = range.begin; i < range.end; ++i) ++owners[static_cast<size_t>(i)];
                        owned += range.size();
                        end = range.end;
                    }
                    ASSERT_GE(owned, size / ranks);
                    ASSERT_LT(owned, size / ranks + ranks);
                }
                ASSERT_EQ(owners, std::vector<int>(owners.size(), 1)) << size << " for " << ranks << " by " << target;
            }
        }
    }
}

/// Uncut parameters first, last and between, of sizes that divide by nothing.
std::vector<ParamSpec> some_params() {
    return {{.name = "first", .shape = {5}, .decay = false},
            {.name = "rows", .shape = {8, 13}, .cut = Cut::rows},
            {.name = "middle", .shape = {7, 3}},
            {.name = "columns", .shape = {9, 4}, .cut = Cut::columns},
            {.name = "last", .shape = {3}, .decay = false}};
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
                        ParamLayout const layout(some_params(), mesh.shape().tp, mesh.tp_rank());
                        Buckets const buckets(layout.size(), target, mesh.dp_cp().size());
                        auto const mine = resolve_ownership(layout, buckets, mesh, true);
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

TEST(Ownership, WithoutZeroEveryRankUpdatesEverything) {
    run_ranks(4, [](HostComm& comm) {
        Mesh const mesh({.tensor = 2}, comm);
        ParamLayout const layout(some_params(), 2, mesh.tp_rank());
        Buckets const buckets(layout.size(), 20, 2);
        EXPECT_EQ(resolve_ownership(layout, buckets, mesh, false).updated, std::vector{layout.whole()});
        EXPECT_EQ(resolve_ownership(layout, buckets, mesh, true).updated, buckets.shares(mesh.dp_cp().rank()));
    });
}

std::vector<ParamSpec> one_tensor(int64_t size) { return {{.name = "x", .shape = {size}}}; }

TEST(Replicas, SumTheirGradientsWhereTheyOwnThemAndCollectWhatTheyUpdated) {
    for (int64_t size : {3, 64, 300, 301, 307}) {
        for (int ranks = 1; ranks <= 8; ++ranks) {
            for (bool zero : {false, true}) {
                std::vector<std::vector<double>> grads;
                std::vector<double> sum(static_cast<size_t>(size));
                for (int r = 0; r < ranks; ++r) {
                    grads.push_back(random_normal<double>(size, 700 + static_cast<uint64_t>(r)));
                    for (size_t i = 0; i < sum.size(); ++i) sum[i] += grads.back()[i];
                }
                run_ranks(ranks, [&](HostComm& comm) {
                    auto host = make_host_device();
                    Mesh const mesh({}, comm);
                    ParamLayout const layout(one_tensor(size), 1, 0);
                    Replicas replicas(layout, Buckets(size, 40, ranks), mesh, zero, *host);
                    for (int step = 0; step < 2; ++step) {
                        auto const& local = grads[static_cast<size_t>(comm.rank())];
                        auto mine = local;
                        TensorView const view(mine.data(), {size});
                        for (int64_t begin : {size, size * 3 / 4, size / 2, size / 2})
                            replicas.reduce_from(view, begin);
                        Buckets const buckets(size, 40, ranks);
                        for (int64_t b = 0; b < buckets.count() && buckets.range(b).begin < size / 2; ++b)
                            for (int64_t i = buckets.range(b).begin; i < buckets.range(b).end; ++i)
                                ASSERT_EQ(mine[static_cast<size_t>(i)], local[static_cast<size_t>(i)])
                                    << "sent before it was complete";
                        replicas.reduce_from(view, 0);
                        replicas.await_sums();
                        auto weights = testing::poisoned<double>(size);
                        for (FlatRange const& r : replicas.ownership().updated)
                            for (int64_t i = r.begin; i < r.end; ++i)
                                weights[static_cast<size_t>(i)] = mine[static_cast<size_t>(i)];
                        replicas.gather({weights.data(), {size}});
                        replicas.await_weights();
                        ASSERT_LT(testing::relative_error(weights, sum), 1e-14)
                            << size << " elements, " << ranks << " ranks, zero " << zero << ", step " << step;
                    }
                });
            }
        }
    }
}

}  // namespace
}  // namespace perigee
