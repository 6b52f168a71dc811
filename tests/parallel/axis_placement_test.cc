#include "parallel/axis_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/fake_hosts.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using testing::by_host;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::in_turns;

std::vector<int> hosts_of(std::vector<std::string> const& host_of_rank) {
    std::vector<testing::FakeHost> hosts;
    for (std::string const& name : host_of_rank) hosts.push_back({.name = name, .gpus = 0});
    return place_ranks(testing::report(hosts, host_of_rank)).host_of();
}

TEST(AxisPlacement, TensorThenContextThenDataOnTwoHostsOfFour) {
    auto const hosts = hosts_of(by_host({{"a", 4}, {"b", 4}}));
    auto const axes = place_axes({.dp = 2, .cp = 2, .tp = 2}, hosts);
    EXPECT_EQ(axes[0].crossing, 0);
    EXPECT_EQ(axes[1].crossing, 0);
    EXPECT_EQ(axes[2].crossing, 4);
    EXPECT_THAT(axes[2].example, ElementsAre(0, 4));
    EXPECT_EQ(describe(axes), "tensor 2, context 2 within a host; data 2 over 2 hosts");
    EXPECT_EQ(tensor_warning({.dp = 2, .cp = 2, .tp = 2}, hosts), "");
}

TEST(AxisPlacement, FourHostsOfEight) {
    auto const hosts = hosts_of(by_host({{"a", 8}, {"b", 8}, {"c", 8}, {"d", 8}}));
    EXPECT_EQ(describe(place_axes({.dp = 4, .cp = 1, .tp = 8}, hosts)), "tensor 8 within a host; data 4 over 4 hosts");
    EXPECT_EQ(describe(place_axes({.dp = 8, .cp = 2, .tp = 2}, hosts)),
              "tensor 2, context 2 within a host; data 8 over 4 hosts");
    EXPECT_EQ(describe(place_axes({.dp = 2, .cp = 8, .tp = 2}, hosts)),
              "tensor 2 within a host; context 8 over 2 hosts, data 2 over 2 hosts");
    EXPECT_EQ(describe(place_axes({.dp = 32, .cp = 1, .tp = 1}, hosts)), "data 32 over 4 hosts");
    EXPECT_EQ(describe(place_axes({.dp = 1, .cp = 2, .tp = 16}, hosts)),
              "tensor 16 over 2 hosts, context 2 over 2 hosts");
    EXPECT_THAT(
        tensor_warning({.dp = 1, .cp = 2, .tp = 16}, hosts),
        AllOf(HasSubstr("2 of 2 tensor-parallel groups cross hosts"), HasSubstr("parallel.tensor 8 would stay")));
}

TEST(AxisPlacement, OneHostHoldsEveryAxis) {
    auto const hosts = hosts_of(by_host({{"a", 8}}));
    EXPECT_EQ(describe(place_axes({.dp = 2, .cp = 2, .tp = 2}, hosts)), "tensor 2, context 2, data 2 within a host");
    EXPECT_EQ(describe(place_axes({.dp = 1, .cp = 1, .tp = 1}, hosts_of({"a"}))), "");
}

TEST(AxisPlacement, UnevenHostsCutOneTensorGroup) {
    auto const hosts = hosts_of(by_host({{"a", 7}, {"b", 9}}));
    auto const axes = place_axes({.dp = 8, .cp = 1, .tp = 2}, hosts);
    EXPECT_EQ(axes[0].crossing, 1);
    EXPECT_THAT(axes[0].example, ElementsAre(6, 7));
    EXPECT_THAT(tensor_warning({.dp = 8, .cp = 1, .tp = 2}, hosts),
                AllOf(HasSubstr("1 of 8 tensor-parallel groups cross hosts, the first with the ranks 6, 7"),
                      HasSubstr("parallel.tensor 1 would stay within hosts")));
}

TEST(AxisPlacement, RanksDealtOutInTurnsAreToldToFillHosts) {
    auto const hosts = hosts_of(in_turns({"a", "b"}, 8));
    EXPECT_THAT(tensor_warning({.dp = 4, .cp = 1, .tp = 2}, hosts),
                AllOf(HasSubstr("4 of 4 tensor-parallel groups"), HasSubstr("ranks 0, 1"),
                      HasSubstr("fill one host after the other")));
    // Here the outer axis is the one within hosts.
    EXPECT_EQ(describe(place_axes({.dp = 4, .cp = 1, .tp = 2}, hosts)), "data 4 within a host; tensor 2 over 2 hosts");
}

}  // namespace
}  // namespace perigee
