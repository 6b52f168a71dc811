#include "comm/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "support/fake_hosts.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using testing::by_host;
using testing::cpus_of_node;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::in_turns;
using ::testing::Not;
using testing::report;

std::vector<int> all(Placement const& placement, int Seat::*property) {
    std::vector<int> values;
    for (Seat const& seat : placement.seats) values.push_back(seat.*property);
    return values;
}

Placement placed(std::vector<RankReport> const& reports, GpuOptions const& options = {}) {
    Placement placement = place_ranks(reports);
    give_gpus(placement, reports, options);
    return placement;
}

std::string refusal(std::vector<RankReport> const& reports, GpuOptions const& options = {}) {
    try {
        placed(reports, options);
    } catch (Error const& error) {
        EXPECT_EQ(error.category(), Category::config);
        return error.what();
    }
    ADD_FAILURE() << "accepted";
    return "";
}

TEST(Placement, TwoHostsOfFourGpusGiveEachLocalRankItsOwn) {
    auto const placement = placed(report({{"a", 4}, {"b", 4}}, by_host({{"a", 4}, {"b", 4}})));
    EXPECT_THAT(all(placement, &Seat::host), ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
    EXPECT_THAT(all(placement, &Seat::local_rank), ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
    EXPECT_THAT(all(placement, &Seat::gpu), ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
    EXPECT_THAT(all(placement, &Seat::node), ElementsAre(0, 0, 1, 1, 0, 0, 1, 1));
    EXPECT_EQ(placement.seats[5].cpus, cpus_of_node(0));
    EXPECT_EQ(placement.seats[6].cpus, cpus_of_node(1));
    EXPECT_THAT(all(placement, &Seat::cores), ::testing::Each(8)) << "16 CPUs of a node for two ranks";
    EXPECT_THAT(describe(placement),
                ElementsAre("8 ranks on 2 hosts", "a: ranks 0-3 on GPUs 0-3 of 4, NUMA 0 0 1 1, cores 8",
                            "b: ranks 4-7 on GPUs 0-3 of 4, NUMA 0 0 1 1, cores 8"));
}

TEST(Placement, FourHostsOfEightGpus) {
    auto const placement =
        placed(report({{"a", 8}, {"b", 8}, {"c", 8}, {"d", 8}}, by_host({{"a", 8}, {"b", 8}, {"c", 8}, {"d", 8}})));
    for (int rank = 0; rank < 32; ++rank) {
        Seat const& seat = placement.seats[static_cast<size_t>(rank)];
        EXPECT_EQ(seat.host, rank / 8);
        EXPECT_EQ(seat.local_rank, rank % 8);
        EXPECT_EQ(seat.gpu, rank % 8);
        EXPECT_EQ(seat.node, rank % 8 / 4);
        EXPECT_EQ(seat.cores, 4);
    }
}

TEST(Placement, RanksDealtOutInTurnsAreCountedByHost) {
    auto const placement = placed(report({{"a", 4}, {"b", 4}}, in_turns({"a", "b"}, 8)));
    EXPECT_THAT(all(placement, &Seat::host), ElementsAre(0, 1, 0, 1, 0, 1, 0, 1));
    EXPECT_THAT(all(placement, &Seat::local_rank), ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
    EXPECT_THAT(all(placement, &Seat::gpu), ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
    EXPECT_THAT(placement.hosts[1].ranks, ElementsAre(1, 3, 5, 7));
    EXPECT_THAT(describe(placement)[2], HasSubstr("b: ranks 1,3,5,7 on GPUs 0-3 of 4"));
}

TEST(Placement, UnevenHostsAreCountedEachByItself) {
    auto const placement = placed(report({{"a", 8}, {"b", 9}}, by_host({{"a", 7}, {"b", 9}})));
    EXPECT_EQ(placement.seats[6].gpu, 6);
    EXPECT_EQ(placement.seats[7].gpu, 0);
    EXPECT_EQ(placement.seats[15].gpu, 8);
    EXPECT_THAT(describe(placement)[1], HasSubstr("a: ranks 0-6 on GPUs 0-6 of 8"));
}

TEST(Placement, HostsAreToldApartByTheirRanksNotByTheirNames) {
    auto reports = report({{"box", 2}}, by_host({{"box", 4}}));
    reports[2].first_of_host = reports[3].first_of_host = 2;  // two containers of one name
    auto const placement = placed(reports);
    EXPECT_EQ(placement.hosts.size(), 2u);
    EXPECT_THAT(all(placement, &Seat::gpu), ElementsAre(0, 1, 0, 1));
}

TEST(Placement, AHostWithFewerGpusThanRanksIsNamedWithBothNumbers) {
    auto const ranks = by_host({{"a", 7}, {"b", 9}});
    EXPECT_THAT(refusal(report({{"a", 8}, {"b", 8}}, ranks)),
                AllOf(HasSubstr("host b has 8 GPUs for its 9 ranks"), HasSubstr("parallel.share_gpu: true"),
                      HasSubstr("device: cpu"), Not(HasSubstr("host a"))));
    EXPECT_THAT(refusal(report({{"a", 1}, {"b", 4}}, ranks)),
                AllOf(HasSubstr("host a has 1 GPU for its 7 ranks"), HasSubstr("host b has 4 GPUs for its 9 ranks")));
}

TEST(Placement, AHostWithoutGpusIsRefusedAlsoWhereTheyAreShared) {
    auto const reports = report({{"a", 4}, {"b", 0}}, by_host({{"a", 4}, {"b", 4}}));
    for (bool const share : {false, true})
        EXPECT_THAT(refusal(reports, {.share = share}),
                    AllOf(HasSubstr("host b has no GPU for its 4 ranks"), Not(HasSubstr("share_gpu"))));
    auto broken = reports;
    broken[5].gpu_problem = "2 NVIDIA devices, and CUDA says: no";
    EXPECT_THAT(refusal(broken), HasSubstr("(2 NVIDIA devices, and CUDA says: no)"));
}

TEST(Placement, SharedGpusTakeTurns) {
    auto const placement = placed(report({{"a", 2}, {"b", 4}}, by_host({{"a", 5}, {"b", 3}})), {.share = true});
    EXPECT_THAT(all(placement, &Seat::gpu), ElementsAre(0, 1, 0, 1, 0, 0, 1, 2));
    EXPECT_THAT(describe(placement)[1], HasSubstr("a: ranks 0-4 on GPUs 0 1 0 1 0 of 2, NUMA 0 1 0 1 0"));
}

TEST(Placement, ALauncherMayShowEachRankItsOwnGpu) {
    auto reports = report({{"a", 4}, {"b", 4}}, by_host({{"a", 4}, {"b", 4}}));
    for (size_t rank = 0; rank < reports.size(); ++rank) reports[rank].gpus = {reports[rank].gpus[3 - rank % 4]};
    auto const placement = placed(reports);
    EXPECT_THAT(all(placement, &Seat::gpu), ::testing::Each(0));
    EXPECT_THAT(all(placement, &Seat::gpu_of_host), ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
    EXPECT_THAT(all(placement, &Seat::node), ElementsAre(1, 1, 0, 0, 1, 1, 0, 0));
    EXPECT_EQ(placement.hosts[0].gpus.size(), 4u);
}

TEST(Placement, ALauncherMayShowEachRankSeveralGpus) {
    auto reports = report({{"a", 4}}, by_host({{"a", 2}}));
    for (size_t rank : {0u, 1u})
        reports[rank].gpus = {testing::fake_gpu(static_cast<int>(2 * rank), 4),
                              testing::fake_gpu(static_cast<int>(2 * rank + 1), 4)};
    auto const placement = placed(reports);
    EXPECT_THAT(all(placement, &Seat::gpu), ElementsAre(0, 0));
    EXPECT_THAT(all(placement, &Seat::gpu_of_host), ElementsAre(0, 2));
}

TEST(Placement, ALauncherThatShowsTwoRanksTheSameGpuIsRefused) {
    auto reports = report({{"a", 2}}, by_host({{"a", 2}}));
    reports[0].gpus.resize(1);
    reports[1].gpus = reports[0].gpus;
    EXPECT_THAT(refusal(reports), HasSubstr("host a has 1 GPU for its 2 ranks"));
    EXPECT_THAT(all(placed(reports, {.share = true}), &Seat::gpu), ElementsAre(0, 0));

    reports = report({{"a", 3}}, by_host({{"a", 3}}));
    reports[1].gpus = reports[2].gpus = {reports[0].gpus[0]};
    EXPECT_THAT(refusal(reports),
                AllOf(HasSubstr("rank 1 on host a"), HasSubstr("0000:10:00.0"), HasSubstr("CUDA_VISIBLE_DEVICES")));
    reports[1].gpus.clear();
    EXPECT_THAT(refusal(reports, {.share = true}), HasSubstr("rank 1 on host a sees no GPU"));
}

TEST(Placement, CpusOfTheLauncherAreKept) {
    auto reports = report({{"a", 2}}, by_host({{"a", 2}}));
    reports[0].cpus = parse_cpu_list("2-5,20");  // four of them next to GPU 0
    reports[1].cpus = parse_cpu_list("8-11");    // none next to GPU 1
    auto const placement = placed(reports);
    EXPECT_EQ(to_text(placement.seats[0].cpus), "2-5");
    EXPECT_EQ(placement.seats[0].cores, 4);
    EXPECT_EQ(placement.seats[1].node, -1);
    EXPECT_EQ(to_text(placement.seats[1].cpus), "8-11");
    EXPECT_EQ(placement.seats[1].cores, 4);
    auto const unbound = placed(reports, {.bind = false});
    EXPECT_EQ(to_text(unbound.seats[0].cpus), "2-5,20");
    EXPECT_EQ(unbound.seats[0].node, -1);
}

TEST(Placement, CoresAreSharedByRanksOnTheSameCpusOnly) {
    auto reports = report({{"a", 0}, {"b", 0}}, by_host({{"a", 4}, {"b", 2}}));
    auto const together = place_ranks(reports);
    EXPECT_THAT(all(together, &Seat::cores), ElementsAre(8, 8, 8, 8, 16, 16));
    for (int rank = 0; rank < 4; ++rank)  // as Slurm gives them out
        reports[static_cast<size_t>(rank)].cpus = {2 * rank, 2 * rank + 1};
    auto const apart = place_ranks(reports);
    EXPECT_THAT(all(apart, &Seat::cores), ElementsAre(2, 2, 2, 2, 16, 16));
    EXPECT_THAT(all(apart, &Seat::gpu), ::testing::Each(-1));
    EXPECT_THAT(describe(apart)[1], "a: ranks 0-3 on the CPU, cores 2");
    reports.resize(3);
    for (RankReport& each : reports) each.cpus = {0, 1};
    EXPECT_THAT(all(place_ranks(reports), &Seat::cores), ElementsAre(1, 1, 1));
}

TEST(Placement, ManyHostsAreToldInAFewLines) {
    std::vector<testing::FakeHost> hosts;
    std::vector<std::pair<std::string, int>> ranks;
    for (int i = 0; i < 100; ++i) {
        hosts.push_back({.name = fmt::format("node{}", i), .gpus = 8});
        ranks.emplace_back(hosts.back().name, 8);
    }
    auto const lines = describe(placed(report(hosts, by_host(ranks))));
    EXPECT_EQ(lines.size(), 18u);
    EXPECT_EQ(lines.front(), "800 ranks on 100 hosts");
    EXPECT_EQ(lines.back(), "and 84 hosts more");
    for (std::string const& line : lines) EXPECT_LE(line.size(), 79u);
}

TEST(RankReport, SurvivesItsText) {
    auto sent = report({{"node one", 3}}, {"node one"}).front();
    sent.first_of_host = 12;
    sent.gpu_problem = "a sentence, with commas";
    sent.gpus[1].near = {};
    RankReport const received = RankReport::from_text(sent.to_text());
    EXPECT_EQ(received.to_text(), sent.to_text());
    EXPECT_EQ(received.host, "node one");
    EXPECT_EQ(received.first_of_host, 12);
    EXPECT_EQ(received.cpus, sent.cpus);
    ASSERT_EQ(received.gpus.size(), 3u);
    EXPECT_EQ(received.gpus[2].pci_id, sent.gpus[2].pci_id);
    EXPECT_EQ(received.gpus[2].near.cpus, sent.gpus[2].near.cpus);
    EXPECT_EQ(received.gpus[1].near.id, -1);
    EXPECT_TRUE(received.gpus[1].near.cpus.empty());
    EXPECT_THROW(RankReport::from_text("host\nnot a number\n"), Error);
}

}  // namespace
}  // namespace perigee
