#include "train/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <future>

#include "support/memory_file_system.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

/// A host with three ranks, this process being rank 1. The others are alive and idle.
class WatchdogTest : public ::testing::Test {
  protected:
    WatchdogTest() {
        for (int i = 0; i < 3; ++i) {
            ranks_[static_cast<size_t>(i)].rank = i;
            ranks_[static_cast<size_t>(i)].pid = ::getpid();
            ranks_[static_cast<size_t>(i)].beat = steady_nanoseconds();
        }
        files_.make_directories("/run");
    }
    static void wait_in(RankStatus& status, Collective collective, int64_t sequence, bool inside) {
        status.begun.store({sequence, collective, Axis::all});
        status.inside.store(inside ? status.begun.load() : NumberedCollective{});
    }
    Watchdog::EndJob end_job() {
        return [this](Watchdog::Ending const& ending) { ended_.set_value({ending.exit_code, ending.message}); };
    }

    std::array<RankStatus, 3> ranks_;
    HostBoard board_{ranks_, 1};
    testing::MemoryFileSystem files_;
    std::promise<std::pair<int, std::string>> ended_;
};

TEST_F(WatchdogTest, RankThatHasNotReachedTheCollectiveIsNamed) {
    wait_in(ranks_[0], Collective::all_gather, 12, true);
    wait_in(ranks_[1], Collective::all_gather, 12, true);
    wait_in(ranks_[2], Collective::all_reduce, 11, false);
    ranks_[2].section = static_cast<int32_t>(Section::eval);
    ranks_[2].step = 40;
    EXPECT_THAT(describe_hang(board_, 10),
                AllOf(HasSubstr("rank 2 (process"), HasSubstr("in section eval at step 40, after all_reduce #11"),
                      HasSubstr("has not reached all_gather #12"), HasSubstr("limit 10 s"), Not(HasSubstr("sign"))));
}

TEST_F(WatchdogTest, RankWithoutASignOfLifeIsNamedBeforeOneThatIsBehind) {
    wait_in(ranks_[0], Collective::barrier, 7, true);
    wait_in(ranks_[1], Collective::barrier, 6, false);
    wait_in(ranks_[2], Collective::barrier, 7, true);
    ranks_[2].beat = steady_nanoseconds() - 12'000'000'000;
    EXPECT_THAT(describe_hang(board_, 10),
                AllOf(HasSubstr("rank 2 (process"), ContainsRegex("no sign of life for 1[2-9] s"),
                      HasSubstr("inside barrier #7")));
}

TEST_F(WatchdogTest, RanksThatAllWaitBlameAnotherHost) {
    for (RankStatus& rank : ranks_) wait_in(rank, Collective::broadcast, 3, true);
    EXPECT_THAT(describe_hang(board_, 10), AllOf(HasSubstr("every rank of host"), HasSubstr("inside broadcast #3")));
}

TEST_F(WatchdogTest, RanksInDifferentCollectivesOfOneNumberAreBothNamed) {
    wait_in(ranks_[0], Collective::reduce_scatter, 9, true);
    wait_in(ranks_[1], Collective::all_reduce, 9, true);
    wait_in(ranks_[2], Collective::reduce_scatter, 9, true);
    ranks_[0].step = 11;
    EXPECT_THAT(describe_hang(board_, 10),
                AllOf(HasSubstr("rank 0 (process"), HasSubstr("waits in reduce_scatter #9 and rank 1 (process"),
                      HasSubstr("in all_reduce #9: one of them has left out a collective"), HasSubstr("at step 11"),
                      HasSubstr("limit 10 s"), Not(HasSubstr("every rank"))));
    wait_in(ranks_[2], Collective::barrier, 10, true);
    EXPECT_THAT(describe_hang(board_, 10), AllOf(HasSubstr("reduce_scatter #9 and rank 1"), HasSubstr("all_reduce #9"),
                                                 Not(HasSubstr("has not reached"))))
        << "also where a third rank is ahead of both";
}

TEST_F(WatchdogTest, SectionThatTakesTooLongEndsTheJobAndLeavesAFile) {
    Watchdog watchdog({.save_s = 0.3}, files_, end_job());
    watchdog.join(board_, end_job());
    watchdog.report_into("/run");
    wait_in(ranks_[1], Collective::all_reduce, 5, true);
    auto const start = std::chrono::steady_clock::now();
    watchdog.enter(Section::save, 20);
    auto ended = ended_.get_future();
    ASSERT_EQ(ended.wait_for(60s), std::future_status::ready);
    EXPECT_GE(std::chrono::steady_clock::now() - start, 300ms);
    auto const [code, message] = ended.get();
    EXPECT_EQ(code, 6);
    EXPECT_THAT(message, HasSubstr("hang error: rank 0"));

    auto const report = nlohmann::json::parse(files_.read_text("/run/failure_rank_1.json", 1 << 16));
    EXPECT_EQ(report["category"], "hang");
    EXPECT_EQ(report["section"], "save");
    EXPECT_EQ(report["step"], 20);
    EXPECT_EQ(report["collective"], "all_reduce");
    EXPECT_EQ(report["sequence"], 5);
    EXPECT_EQ(report["inside_collective"], true);
    EXPECT_EQ(report["pid"], ::getpid());
    files_.create("/run/01234567.failure_rank_0.json.tmp");  // of a rank that was killed while it wrote
    remove_failures(files_, "/run");
    EXPECT_TRUE(files_.list("/run").empty());
}

TEST_F(WatchdogTest, SectionsWithinTheirLimitsRaiseNoAlarm) {
    // The limit leaves a busy machine more than a second to get round to this thread.
    Watchdog watchdog({.step_s = 1.5}, files_, end_job());
    watchdog.join(board_, end_job());
    auto ended = ended_.get_future();
    for (int64_t step = 1; step <= 6; ++step) {  // longer than the limit altogether
        watchdog.enter(Section::step, step);
        EXPECT_EQ(ended.wait_for(300ms), std::future_status::timeout);
    }
    watchdog.enter(Section::eval, 6);
    EXPECT_EQ(ended.wait_for(2s), std::future_status::timeout) << "another section has its own limit";
}

TEST_F(WatchdogTest, DisabledOneSetsNoLimit) {
    Watchdog watchdog({.enabled = false, .setup_s = 0.1}, files_, end_job());
    watchdog.join(board_, end_job());
    EXPECT_EQ(ended_.get_future().wait_for(500ms), std::future_status::timeout);
}

TEST_F(WatchdogTest, GroupThatFailsEndsTheJobAndSaysWhereThisRankIs) {
    Watchdog watchdog({}, files_, end_job());
    watchdog.join(board_, end_job());
    watchdog.enter(Section::step, 7);
    ranks_[1].on_device.store({12, Collective::all_gather, Axis::tensor});
    std::atomic<bool> failed = false;
    {
        AskedByWatchdog const asked(&watchdog,
                                    [&] { return std::string(failed ? "the tensor ranks: remote error" : ""); });
        auto ended = ended_.get_future();
        EXPECT_EQ(ended.wait_for(300ms), std::future_status::timeout);
        failed = true;
        ASSERT_EQ(ended.wait_for(20s), std::future_status::ready);
        auto const [code, message] = ended.get();
        EXPECT_EQ(code, static_cast<int>(Category::communication));
        EXPECT_THAT(message, AllOf(HasSubstr("rank 1, in section step at step 7, inside tensor all_gather #12"),
                                   HasSubstr("the tensor ranks: remote error")));
    }
    watchdog.part();
}

TEST_F(WatchdogTest, RankThatDiesIsNamedAtOnceButNotOneThatLeaves) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    pid_t const child = ::fork();
    if (child == 0) {
        char byte = 0;
        ::_exit(::read(ends[0], &byte, 1) == 1 ? 0 : 1);
    }
    ranks_[2].pid = child;
    ranks_[2].step = 17;
    Watchdog watchdog({.enabled = false}, files_, end_job());
    watchdog.join(board_, end_job());
    ranks_[0].leaving = true;
    ranks_[0].pid = 1 << 30;
    auto ended = ended_.get_future();
    EXPECT_EQ(ended.wait_for(300ms), std::future_status::timeout);
    ASSERT_EQ(::write(ends[1], "x", 1), 1);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    ASSERT_EQ(ended.wait_for(60s), std::future_status::ready);
    auto const [code, message] = ended.get();
    EXPECT_EQ(code, 7);
    EXPECT_THAT(message, AllOf(HasSubstr("rank 2 (process"), HasSubstr("died in section setup at step 17")));
    ::close(ends[0]);
    ::close(ends[1]);
}

}  // namespace
}  // namespace perigee
