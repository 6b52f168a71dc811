// The global norm under tensor and data parallelism, between real processes (tests/optim/mpi_global_norm_test.sh): cut
// parameters count part by part, whole ones once, replicas once, and a NaN on one rank reaches every rank.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "comm/launch.h"
#include "optim/global_norm.h"
#include "optim/optimizer.h"
#include "support/random.h"

namespace perigee {
namespace {

struct Job {
    static inline Launch* launch = nullptr;
};

std::vector<ParamSpec> some_params() {
    return {{.name = "norm1", .shape = {12}, .decay = false},
            {.name = "rows", .shape = {24, 12}, .cut = Cut::rows},
            {.name = "columns", .shape = {12, 36}, .cut = Cut::columns},
            {.name = "norm2", .shape = {12}, .decay = false}};
}

/// This rank's part of gradients that are random per global tensor.
std::vector<double> local_grads(ParamLayout const& layout) {
    std::vector<double> flat(static_cast<size_t>(layout.size()));
    for (auto const& entry : layout.entries()) {
        auto const global = testing::random_normal<double>(entry.spec.shape.size(), hash_name(entry.spec.name));
        for (auto const& run : entry.shard.runs()) {
            std::copy_n(global.begin() + run.global, run.count, flat.begin() + entry.offset + run.local);
        }
    }
    return flat;
}

TEST(GlobalNorm, IsThatOfTheWholeModelForEveryTensorAxis) {
    HostComm& world = Job::launch->world();
    auto host = make_host_device();
    auto ops = make_host_ops_f64(*host, 1);
    auto const whole = local_grads(ParamLayout(some_params(), 1, 0));
    double const want = std::sqrt(std::inner_product(whole.begin(), whole.end(), whole.begin(), 0.0));
    for (int tp = 1; tp <= world.size(); ++tp) {
        if (world.size() % tp != 0) continue;
        Mesh const mesh({.tensor = tp}, world);
        ParamLayout const layout(some_params(), tp, mesh.tp_rank(), unit_multiple(mesh.dp_cp().size()));
        Ownership const ownership = Sharding(layout, mesh, ShardStage::optimizer, 50).ownership;
        auto grads = local_grads(layout);
        TensorView const view(grads.data(), Shape{layout.size()});
        AdamWOptimizer optimizer({}, layout, ownership, testing::parts_of(ownership.updated, view), *ops);
        EXPECT_NEAR(testing::global_norm(optimizer, view, mesh), want, 1e-12 * want) << "tensor " << tp;
        if (world.rank() == world.size() - 1) std::fill(grads.begin(), grads.end(), std::nan(""));
        EXPECT_FALSE(std::isfinite(testing::global_norm(optimizer, view, mesh))) << "tensor " << tp;
    }
}

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
    perigee::Launch launch(&argc, &argv);
    perigee::Job::launch = &launch;
    ::testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
