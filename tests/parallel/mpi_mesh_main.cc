// Mesh between real processes (tests/parallel/mpi_mesh_test.sh): for every way to cut the job, each axis holds exactly
// the ranks that differ in that axis alone, in order.
#include <gtest/gtest.h>

#include "comm/launch.h"
#include "parallel/mesh.h"

namespace perigee {
namespace {

struct Job {
    static inline Launch* launch = nullptr;
};

std::vector<int64_t> members(Comm const& axis, int64_t rank) {
    HostComm& group = axis.host();
    std::vector<int64_t> all(static_cast<size_t>(group.size()), -1);
    group.all_gather(TensorView(all.data(), Shape{group.size()}), ConstView(&rank, Shape{1}));
    return all;
}

TEST(MeshAxes, HoldTheRanksThatDifferInThatAxisAloneWithTensorFastest) {
    HostComm& world = Job::launch->world();
    int const n = world.size();
    for (int tp = 1; tp <= n; ++tp) {
        for (int cp = 1; tp * cp <= n; ++cp) {
            if (n % (tp * cp) != 0) continue;
            Mesh const mesh({.tensor = tp, .context = cp}, world);
            int const dp = n / (tp * cp);
            auto rank_at = [&](int d, int c, int t) { return int64_t{(d * cp + c) * tp + t}; };
            int const d = mesh.dp_rank(), c = mesh.cp_rank(), t = mesh.tp_rank();
            EXPECT_EQ(rank_at(d, c, t), world.rank());

            std::vector<int64_t> over_tp, over_cp, over_dp, over_dp_cp;
            for (int i = 0; i < tp; ++i) over_tp.push_back(rank_at(d, c, i));
            for (int i = 0; i < cp; ++i) over_cp.push_back(rank_at(d, i, t));
            for (int i = 0; i < dp; ++i) over_dp.push_back(rank_at(i, c, t));
            for (int i = 0; i < dp * cp; ++i) over_dp_cp.push_back(rank_at(i / cp, i % cp, t));
            EXPECT_EQ(members(mesh.tp(), world.rank()), over_tp);
            EXPECT_EQ(members(mesh.cp(), world.rank()), over_cp);
            EXPECT_EQ(members(mesh.dp(), world.rank()), over_dp);
            EXPECT_EQ(members(mesh.dp_cp(), world.rank()), over_dp_cp);
            EXPECT_EQ(members(mesh.dp_cp_gather(), world.rank()), over_dp_cp);
            EXPECT_EQ(members(mesh.pp(), world.rank()), std::vector<int64_t>{world.rank()});
        }
    }
}

TEST(MeshAxes, RefuseAJobThatDoesNotFitOnEveryRank) {
    HostComm& world = Job::launch->world();
    EXPECT_THROW(Mesh({.tensor = world.size() + 1}, world), Error);
}

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
    perigee::Launch launch(&argc, &argv);
    perigee::Job::launch = &launch;
    ::testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
