// Ends a job in which a rank hangs or has died, and says which rank, where, and what the others wait for. A thread per
// rank looks at the clock and at the other ranks of its host (comm/host_board.h); no collective is involved.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/schema.h"
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

class Watchdog {
  public:
    /// Prints the message and ends every process of the job; Launch::abort.
    using EndJob = std::function<void(int exit_code, std::string const& message, std::chrono::seconds patience)>;

    /// Starts in Section::setup. Where it is not enabled there are no limits, but dead ranks are still noticed.
    Watchdog(WatchdogOptions const& options, HostBoard const& board, FileSystem& files, EndJob end_job);
    ~Watchdog();
    Watchdog(Watchdog const&) = delete;
    Watchdog& operator=(Watchdog const&) = delete;

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
    std::string dead_peer();  ///< what to say about it; empty where all live
    void end(Category category, std::string const& message, std::chrono::seconds patience);

    WatchdogOptions options_;
    HostBoard board_;
    FileSystem* files_;
    EndJob end_job_;
    std::vector<bool> seen_alive_;  ///< by local rank; the watching thread's

    std::mutex mutex_;
    std::condition_variable stop_requested_;
    bool stop_ = false;
    Path folder_;
    int64_t sections_entered_ = 0;
    double limit_s_ = 0;
    Clock::time_point entered_;
    std::vector<double> step_seconds_;  ///< of the last steps, a ring
    size_t steps_seen_ = 0;

    std::thread thread_;  ///< last: it uses all of the above
};

/// Who holds the job up and where, as far as this host knows: the rank without a sign of life, else the one that has
/// begun the fewest collectives.
std::string describe_hang(HostBoard const& board, double limit_s);
/// What the rank was doing when it was last heard of.
std::string describe_place(RankStatus const& status);

}  // namespace perigee
