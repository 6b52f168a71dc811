#include "train/slow_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "config/config.h"
#include "device/gpu_health.h"
#include "device/gpu_list.h"
#include "support/thread_comm.h"

namespace perigee {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SlowRanksTest, AreThoseAboveTheFactorTimesTheMedian) {
    EXPECT_THAT(slow_ranks(std::vector{1.0, 1.1, 0.9, 1.3}, 1.25), ElementsAre(3));
    EXPECT_THAT(slow_ranks(std::vector{1.0, 1.1, 0.9, 1.24}, 1.25), IsEmpty());
    EXPECT_THAT(slow_ranks(std::vector{2.0, 1.0}, 1.25), ElementsAre(0));
    EXPECT_THAT(slow_ranks(std::vector{3.0, 3.0, 1.0, 1.0}, 1.25), ElementsAre(0, 1));
    EXPECT_THAT(slow_ranks(std::vector{0.0, 0.0}, 1.25), IsEmpty());
}

/// What rank 0 warns of, after so many steps in which rank 1 works `seconds` and the others one, and waits two.
std::vector<std::string> warnings(double seconds, int64_t steps) {
    RunOptions const options = resolve(parse_config(R"(
model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 4, num_key_value_heads: 2}
data: {mock_data: true, sequence_length: 32}
train: {global_batch_size: 4}
threads: 1
)",
                                                    "tiny", {}),
                                       1, *make_file_system());
    auto const files = make_file_system();
    std::vector<std::string> lines;
    log::mirror([&](std::string const& line) {
        if (line.find("slow") != line.npos) lines.push_back(line);
    });
    testing::run_ranks(4, [&](HostComm& world) {
        Session const session(options, world, *files);
        SlowRanks watch(10);
        PhaseSeconds phases{};
        phases[static_cast<size_t>(Phase::forward)] = world.rank() == 1 ? seconds : 1;
        phases[static_cast<size_t>(Phase::communication)] = world.rank() == 1 ? 0 : 2;
        for (int64_t step = 0; step < steps; ++step) watch.take(session, phases);
    });
    log::mirror({});
    return lines;
}

TEST(SlowRanksTest, AreNamedOnceInSoManySteps) {
    EXPECT_THAT(warnings(1.5, 10), IsEmpty()) << "the first step does not count";
    auto const lines = warnings(1.5, 21);
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_THAT(lines[0], HasSubstr("rank 1 (on the CPU of host "));
    EXPECT_THAT(lines[0], HasSubstr("is slow: 1.500 s of work in a step, the median rank 1.000 s"));
    EXPECT_THAT(warnings(1.2, 21), IsEmpty());
}

TEST(SlowRanksTest, HealthOfNoGpuIsUnknown) {
    EXPECT_FALSE(gpu_health("ffff:ff:1f.7"));
    EXPECT_EQ(to_string(std::nullopt), "clock and temperature unknown");
    EXPECT_EQ(to_string(GpuHealth{1410, 1980, 84}), "1410 of 1980 MHz, 84 C");
}

TEST(GpuHealth, OfAGpuIsPlausible) {
    auto const gpus = list_gpus().pci_ids;
    if (gpus.empty()) GTEST_SKIP() << "no GPU";
    auto const health = gpu_health(gpus[0]);
    if (!health) GTEST_SKIP() << "NVML does not answer";
    EXPECT_GT(health->clock_mhz, 100u);
    EXPECT_GE(health->max_clock_mhz, health->clock_mhz);
    EXPECT_GT(health->celsius, 5u);
    EXPECT_LT(health->celsius, 120u);
}

}  // namespace
}  // namespace perigee
