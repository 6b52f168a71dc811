// Ends a job in which a rank hangs or has died, and says which rank, where, and what the others wait for; ends it as
// well when its launcher has died, or when it is told to stop and has nothing to save. A thread per rank looks at the
// clock, at the launcher (comm/launcher.h) and at the other ranks of its host (comm/host_board.h); no collective is
// involved.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/schema.h"
#include "comm/launcher.h"
#include "train/failure.h"

namespace perigee {

/// Limits in seconds, each for one section of a run.
struct WatchdogOptions {
    bool enabled = true;
    double setup_s = 600;
    double first_step_s = 300;
    double step_s = 0;  ///< 0: max(60, 10 x the median of recent steps)
    double save_s = 420;
    double eval_s = 600;
};
void describe(Schema& schema, WatchdogOptions& options);

/// Thread rule: any thread may call any member. EndJob runs on the thread of the watchdog.
class Watchdog {
  public:
    /// How a job ends.
    struct Ending {
        int exit_code = 0;
        std::string message;
        std::chrono::seconds patience{0};  ///< how long the launcher may take to end the job by itself
        bool at_once = false;              ///< every rank ends by itself, without MPI
    };
    /// Prints the message and ends every process of the job, or this one where the ending is `at_once`.
    using EndJob = std::function<void(Ending const& ending)>;

    /// Starts in Section::setup, in a process that has yet to join its job. Where it is not enabled there are no
    /// limits, but the dead and requests to stop are still noticed. `end` is used while the job is not joined.
    Watchdog(WatchdogOptions const& options, FileSystem& files, EndJob end, bool has_launcher = false);
    ~Watchdog();
    Watchdog(Watchdog const&) = delete;
    Watchdog& operator=(Watchdog const&) = delete;

    /// The limits are these from now on.
    void limit_by(WatchdogOptions const& options);
    /// The ranks of this host are known, until part().
    void join(HostBoard const& board, EndJob end);
    void part();
    /// Until now a request to stop ended the job at once; from now on it is the run's to see. False where somebody has
    /// asked already.
    bool hold_stop();

    /// Asked from now on, at every tick and on the watchdog's thread: what has failed in a group of ranks, empty where
    /// nothing has. It must not wait. An empty function ends that.
    void ask(std::function<std::string()> group_failure);
    /// The previous section has ended and this one begins; `step` is the one being done, or the last one done.
    void enter(Section section, int64_t step);
    /// Failures are written into `folder` from now on: this job owns it.
    void report_into(Path folder);
    /// Leaves failure_rank_R.json, where there is a folder to leave it in.
    void record(Category category, std::string const& message) noexcept;

  private:
    using Clock = std::chrono::steady_clock;

    void watch();
    double limit(Section section) const;
    std::optional<Ending> why_to_end(bool late);
    bool must_stop();         ///< it was told to, and no run sees to it
    std::string dead_peer();  ///< what to say about it; empty where all live
    bool a_peer_left() const;
    std::string failed_group();  ///< what to say about it; empty while none has failed
    void end(Ending const& ending);

    WatchdogOptions options_;
    FileSystem* files_;
    Launcher const launcher_;
    RankStatus alone_;  ///< the board before the job is joined
    HostBoard board_;
    EndJob end_alone_, end_job_;
    std::vector<bool> seen_alive_;  ///< by local rank
    std::function<std::string()> group_failure_;
    std::optional<Clock::time_point> group_failed_;

    std::mutex mutex_;
    std::condition_variable changed_;
    bool stop_ = false;
    bool joined_ = false, parted_ = false, holds_stop_ = false;
    bool ending_ = false;  ///< the job ends, and its board must stay
    Path folder_;
    int64_t sections_entered_ = 0;
    double limit_s_ = 0;
    Clock::time_point entered_;
    std::optional<Clock::time_point> told_to_stop_;
    std::vector<double> step_seconds_;  ///< of the last steps, a ring
    size_t steps_seen_ = 0;

    std::thread thread_;  ///< last: it uses all of the above
};

/// Lets a watchdog, which may be null, ask while this lives.
class AskedByWatchdog {
  public:
    AskedByWatchdog(Watchdog* watchdog, std::function<std::string()> group_failure) : watchdog_(watchdog) {
        if (watchdog_ != nullptr) watchdog_->ask(std::move(group_failure));
    }
    ~AskedByWatchdog() {
        if (watchdog_ != nullptr) watchdog_->ask({});
    }
    AskedByWatchdog(AskedByWatchdog const&) = delete;
    AskedByWatchdog& operator=(AskedByWatchdog const&) = delete;

  private:
    Watchdog* watchdog_;
};

/// How long a communication failure waits before it ends the job. The cause is often a dead rank, and this gives the
/// watchdog time to name it.
inline constexpr std::chrono::seconds kEchoPatience{2};

/// Who holds the job up and where, as far as this host knows: the rank without a sign of life, else the one that has
/// begun the fewest collectives.
std::string describe_hang(HostBoard const& board, double limit_s);
/// What the rank was doing when it was last heard of.
std::string describe_place(RankStatus const& status);

}  // namespace perigee
