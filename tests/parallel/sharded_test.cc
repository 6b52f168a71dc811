// Weights and gradients of several ranks, whole and sharded.
#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/model_weights.h"
#include "parallel/sharded_gradients.h"
#include "support/random.h"
#include "support/thread_comm.h"

namespace perigee {
namespace {

using testing::random_normal;
using testing::run_ranks;

constexpr ShardStage kAllStages[] = {ShardStage::none, ShardStage::optimizer, ShardStage::gradients,
                                     ShardStage::weights};

/// An embedding, blocks and a head, of sizes that divide by nothing.
std::vector<ParamSpec> some_params(int blocks) {
    std::vector<ParamSpec> specs = {{.name = "embedding", .shape = {301}}};
    for (int block = 0; block < blocks; ++block) {
        specs.push_back({.name = fmt::format("{}.norm", block), .shape = {7}, .unit = block + 1});
        specs.push_back({.name = fmt::format("{}.matrix", block), .shape = {13, 11}, .unit = block + 1});
    }
    specs.push_back({.name = "head", .shape = {299}, .unit = blocks + 1});
    return specs;
}

/// A rank's world: everything that sharded memory needs.
struct Rank {
    Rank(HostComm& world, ShardStage stage, int blocks = 5)
        : mesh({}, world),
          layout(some_params(blocks), 1, 0, unit_multiple(world.size())),
          sharding(layout, mesh, stage, 200) {}
    std::unique_ptr<Device> device = make_host_device();
    std::unique_ptr<Ops> ops = make_host_ops_f64(*device, 1);
    Mesh mesh;
    ParamLayout layout;
    Sharding sharding;
};

/// Elements of tensors, not of gaps.
template <class Visit>
void each_element(ParamLayout const& layout, FlatRange range, Visit visit) {
    for (auto const& entry : layout.entries())
        for (int64_t i = 0; i < entry.local.size(); ++i)
            if (range.begin <= entry.offset + i && entry.offset + i < range.end) visit(entry.offset + i);
}

TEST(ShardedWeights, AreWholeWhereverAUnitIsNeededHoweverOftenTheyChange) {
    for (ShardStage stage : kAllStages)
        for (int ranks : {1, 2, 3, 5})
            run_ranks(ranks, [&](HostComm& world) {
                Rank rank(world, stage);
                ShardedWeights weights(rank.layout, rank.sharding, rank.mesh, *rank.ops);
                int const units = rank.layout.units();
                for (int version = 0; version < 3; ++version) {
                    auto const value = [version](int64_t i) { return 1000.0 * version + static_cast<double>(i); };
                    for (int unit = 0; unit < units; ++unit) {
                        for (FlatPart const& part : weights.updated()) {
                            FlatRange const both = intersection(part.range, rank.layout.unit(unit));
                            for (int64_t i = both.begin; i < both.end; ++i)
                                part.values.as<double>()[i - part.range.begin] = value(i);
                        }
                        weights.changed(unit);
                    }
                    auto const expect_unit = [&](int unit, int next) {
                        TensorView const memory = weights.need(unit, next);
                        FlatRange const range = rank.layout.unit(unit);
                        ASSERT_EQ(memory.size(), range.size());
                        each_element(rank.layout, range, [&](int64_t i) {
                            ASSERT_EQ(memory.as<double>()[i - range.begin], value(i)) << "unit " << unit;
                        });
                        weights.release(unit);
                    };
                    for (int pass = 0; pass < 2; ++pass) {
                        for (int unit = 0; unit < units; ++unit) expect_unit(unit, unit + 1 < units ? unit + 1 : 5);
                        for (int unit = units; unit-- > 0;) expect_unit(unit, unit - 1);
                    }
                }
            });
}

TEST(ShardedWeights, TakeTheMemoryOfTheirShareAndOfFourUnits) {
    run_ranks(4, [&](HostComm& world) {
        Rank rank(world, ShardStage::weights);
        ShardedWeights weights(rank.layout, rank.sharding, rank.mesh, *rank.ops);
        for (int unit = 0; unit < rank.layout.units(); ++unit) {
            weights.need(unit, unit + 1 < rank.layout.units() ? unit + 1 : -1);
            weights.release(unit);
        }
        int64_t const slots = rank.layout.unit(0).size() + 2 * rank.layout.unit(1).size() + rank.layout.unit(6).size();
        EXPECT_EQ(weights.bytes(), (rank.layout.size() / 4 + slots) * 8);
        EXPECT_THROW(weights.flat(), Error);
    });
}

/// What rank r computes in a micro-batch.
std::vector<double> gradient_of(ParamLayout const& layout, int rank, int micro_batch) {
    return random_normal<double>(layout.size(), 700 + static_cast<uint64_t>(10 * rank + micro_batch));
}

TEST(ShardedGradients, AreTheSumsOverRanksAndMicroBatches) {
    for (ShardStage stage : kAllStages)
        for (int ranks : {1, 2, 3, 5})
            for (auto const& [accumulation, blocks] : {std::pair{1, 5}, {2, 5}, {4, 5}, {1, 1}, {2, 1}, {2, 2}})
                run_ranks(ranks, [&, accumulation = accumulation, blocks = blocks](HostComm& world) {
                    Rank rank(world, stage, blocks);
                    ShardedGradients grads(rank.layout, rank.sharding, rank.mesh, *rank.ops);
                    int const units = rank.layout.units();
                    for (int step = 0; step < 2; ++step) {
                        for (int a = 0; a < accumulation; ++a) {
                            grads.begin_pass(a == 0, a + 1 == accumulation);
                            auto const mine = gradient_of(rank.layout, world.rank(), a);
                            for (int unit = units; unit-- > 0;) {
                                TensorView const memory = grads.begin(unit);
                                FlatRange const range = rank.layout.unit(unit);
                                each_element(rank.layout, range, [&](int64_t i) {
                                    double& place = memory.as<double>()[i - range.begin];
                                    place = (grads.fresh() ? 0 : place) + mine[static_cast<size_t>(i)];
                                });
                                grads.done(unit);
                            }
                        }
                        grads.await();
                        std::vector<double> sum(static_cast<size_t>(rank.layout.size()));
                        for (int r = 0; r < ranks; ++r)
                            for (int a = 0; a < accumulation; ++a) {
                                auto const more = gradient_of(rank.layout, r, a);
                                each_element(rank.layout, rank.layout.whole(), [&](int64_t i) {
                                    sum[static_cast<size_t>(i)] += more[static_cast<size_t>(i)];
                                });
                            }
                        for (FlatPart const& part : grads.updated())
                            for (int64_t i = part.range.begin; i < part.range.end; ++i)
                                ASSERT_NEAR(part.values.as<double>()[i - part.range.begin], sum[static_cast<size_t>(i)],
                                            1e-13)
                                    << "gaps are zero, too";
                    }
                });
}

TEST(ModelWeights, ARankWithoutTokensTakesPartInTheGathersOfOthers) {
    run_ranks(3, [&](HostComm& world) {
        Rank rank(world, ShardStage::weights);
        ModelWeights weights(rank.layout, rank.sharding, &rank.layout, &rank.sharding, rank.mesh, *rank.ops);
        for (int pass = 0; pass < 2; ++pass) {
            if (world.rank() == 2) {
                weights.pass_without_tokens();
                continue;
            }
            for (int unit = 0; unit < rank.layout.units(); ++unit) {
                weights.need(unit, unit + 1 < rank.layout.units() ? unit + 1 : -1);
                weights.release(unit);
            }
        }
    });
}

TEST(ShardedGradients, TakeTheMemoryOfTheirShareAndOfThreeUnits) {
    run_ranks(4, [&](HostComm& world) {
        Rank rank(world, ShardStage::gradients);
        ShardedGradients grads(rank.layout, rank.sharding, rank.mesh, *rank.ops);
        for (int pass = 0; pass < 2; ++pass) {
            grads.begin_pass(pass == 0, pass == 1);
            for (int unit = rank.layout.units(); unit-- > 0;) {
                rank.ops->fill_zero(grads.begin(unit));
                grads.done(unit);
            }
        }
        int64_t const slots =
            std::max(rank.layout.unit(0).size(), rank.layout.unit(6).size()) + 2 * rank.layout.unit(1).size();
        EXPECT_EQ(grads.bytes(), (rank.layout.size() / 4 + slots) * 8);
    });
}

}  // namespace
}  // namespace perigee
