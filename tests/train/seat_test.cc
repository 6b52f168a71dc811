#include "train/seat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/fake_hosts.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using testing::by_host;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::report;

/// The GPU of every rank; -1: the CPU.
std::vector<int> gpus(std::vector<RankReport> const& reports, DeviceChoice choice,
                      ParallelOptions const& options = {}) {
    Placement placement = place_ranks(reports);
    choose_devices(placement, reports, choice, options);
    std::vector<int> list;
    for (Seat const& seat : placement.seats) list.push_back(seat.gpu);
    return list;
}

std::string refusal(std::vector<RankReport> const& reports, DeviceChoice choice, ParallelOptions const& options = {}) {
    try {
        gpus(reports, choice, options);
    } catch (Error const& error) {
        EXPECT_EQ(error.category(), Category::config);
        return error.what();
    }
    ADD_FAILURE() << "accepted";
    return "";
}

TEST(ChooseDevices, AutoTakesGpusWhereThereAreSomeAndElseTheCpu) {
    auto const two = by_host({{"a", 1}, {"b", 1}});
    EXPECT_THAT(gpus(report({{"a", 1}, {"b", 1}}, two), DeviceChoice::automatic), ElementsAre(0, 0));
    EXPECT_THAT(gpus(report({{"a", 0}, {"b", 0}}, two), DeviceChoice::automatic), ElementsAre(-1, -1));
    EXPECT_THAT(gpus(report({{"a", 1}, {"b", 1}}, two), DeviceChoice::cpu), ElementsAre(-1, -1));
}

TEST(ChooseDevices, AutoNeverFallsBackToTheCpuWhereOneHostHasGpus) {
    EXPECT_THAT(refusal(report({{"a", 4}, {"b", 0}}, by_host({{"a", 2}, {"b", 2}})), DeviceChoice::automatic),
                HasSubstr("host b has no GPU for its 2 ranks"));
    EXPECT_THAT(refusal(report({{"a", 1}}, by_host({{"a", 2}})), DeviceChoice::automatic),
                AllOf(HasSubstr("host a has 1 GPU for its 2 ranks"), HasSubstr("parallel.share_gpu: true"),
                      HasSubstr("device: cpu")));
}

TEST(ChooseDevices, AutoNeverFallsBackToTheCpuWhereGpusCannotBeUsed) {
    auto reports = report({{"a", 0}}, by_host({{"a", 1}}));
    reports[0].gpu_problem = "8 NVIDIA devices, and CUDA says: driver too old";
    EXPECT_THAT(refusal(reports, DeviceChoice::automatic), AllOf(HasSubstr("host a has no GPU"), HasSubstr("too old")));
    EXPECT_THAT(gpus(reports, DeviceChoice::cpu), ElementsAre(-1));
}

TEST(IdleGpus, AutoOnTheCpuSaysThatThereAreGpus) {
    auto const ranks = by_host({{"a", 1}, {"b", 1}});
    auto unusable = report({{"a", 0}, {"b", 0}}, ranks);
    EXPECT_EQ(idle_gpus(unusable, DeviceChoice::automatic), "");
    unusable[0].gpu_problem = "2 NVIDIA devices, and this perigee was built without CUDA";
    EXPECT_THAT(idle_gpus(unusable, DeviceChoice::automatic),
                AllOf(HasSubstr("host a has GPUs"), HasSubstr("on the CPU"), HasSubstr("built without CUDA"),
                      HasSubstr("device: cpu")));
    EXPECT_EQ(idle_gpus(unusable, DeviceChoice::cpu), "");
}

TEST(ChooseDevices, CudaIsAnErrorWithoutGpus) {
    EXPECT_THAT(refusal(report({{"a", 0}}, by_host({{"a", 1}})), DeviceChoice::cuda),
                HasSubstr("host a has no GPU for its 1 rank:"));
}

TEST(ChooseDevices, SharesGpusOnRequestOnly) {
    auto const reports = report({{"a", 2}}, by_host({{"a", 4}}));
    EXPECT_THAT(gpus(reports, DeviceChoice::cuda, {.share_gpu = true}), ElementsAre(0, 1, 0, 1));
    EXPECT_THAT(refusal(reports, DeviceChoice::cuda), HasSubstr("host a has 2 GPUs for its 4 ranks"));
}

TEST(ChooseDevices, BindsUnlessToldNotTo) {
    auto const reports = report({{"a", 2}}, by_host({{"a", 2}}));
    for (Bind const bind : {Bind::automatic, Bind::none}) {
        Placement placement = place_ranks(reports);
        choose_devices(placement, reports, DeviceChoice::automatic, {.bind = bind});
        EXPECT_EQ(placement.seats[1].node, bind == Bind::automatic ? 1 : -1);
        EXPECT_EQ(placement.seats[1].cpus == testing::cpus_of_node(1), bind == Bind::automatic);
    }
}

}  // namespace
}  // namespace perigee
