#include "train/watchdog.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/stop_request.h"

namespace perigee {

namespace {

constexpr std::chrono::milliseconds kTick{100};
/// A rank that has not shown a sign of life for so long is stopped, or its machine is far too busy.
constexpr double kSilentSeconds = 1;
/// mpirun sees a rank die as well, knows the signal, and needs two seconds to end the others.
constexpr std::chrono::seconds kLauncherPatience{4};
/// A process that ends inside MPI_Init may hang its launcher: Open MPI's mpirun with PMIx 4.2, for one.
constexpr double kJoinPatienceSeconds = 3;
constexpr size_t kStepsRemembered = 32;
constexpr double kLeastStepLimit = 60, kStepLimitInMedians = 10;

double seconds(auto duration) { return std::chrono::duration<double>(duration).count(); }

double silence(RankStatus const& status) {
    return static_cast<double>(steady_nanoseconds() - status.beat.load()) * 1e-9;
}

std::string who(RankStatus const& status) {
    return fmt::format("rank {} (process {} on host {})", status.rank.load(), status.pid.load(), host_name());
}

/// The collective that `late` has not reached and others wait in; number 0 where nobody is ahead of it.
NumberedCollective waiting_for(HostBoard const& board, RankStatus const& late) {
    NumberedCollective found;
    for (RankStatus const& other : board.ranks) {
        NumberedCollective const there = other.waits_in();
        if (&other == &late || there.sequence <= late.begun.load().sequence) continue;
        if (found.sequence == 0 || there.sequence < found.sequence) found = there;
    }
    return found;
}

/// What two ranks wait in that have the same number of collectives behind them and are not in the same one; empty where
/// there are no such ranks.
std::string different_waits(HostBoard const& board) {
    for (RankStatus const& a : board.ranks)
        for (RankStatus const& b : board.ranks) {
            NumberedCollective const one = a.waits_in(), other = b.waits_in();
            bool const are_alike = one.collective == other.collective && one.axis == other.axis;
            if (one.sequence == 0 || one.sequence != other.sequence || are_alike) continue;
            return fmt::format(
                "{} waits in {} and {} in {}: one of them has left out a collective, or makes them in another order",
                who(a), to_string(one), who(b), to_string(other));
        }
    return "";
}

}  // namespace

void describe(Schema& schema, WatchdogOptions& options) {
    constexpr double kLeast = 0.1, kMost = 1e9;
    schema
        .add("enabled", options.enabled,
             "end the job when a part of it takes longer than its limit, and name the rank that hangs")
        .add("setup_s", options.setup_s, between(kLeast, kMost),
             "limit for joining the job, and for opening data and checkpoint, in seconds")
        .add("first_step_s", options.first_step_s, between(kLeast, kMost), "limit for the first step")
        .add("step_s", options.step_s, between(0, kMost),
             "limit for a later step; 0: 10 times the median of recent steps, and 60 at least")
        .add("save_s", options.save_s, between(kLeast, kMost), "limit for what a step waits for a checkpoint")
        .add("eval_s", options.eval_s, between(kLeast, kMost),
             "limit for a micro-batch of an evaluation, and for all of `eval.reach`");
}

std::string describe_place(RankStatus const& status) {
    NumberedCollective const last = status.begun.load(), there = status.waits_in();
    std::string text = fmt::format("in section {} at step {}", to_string(static_cast<Section>(status.section.load())),
                                   status.step.load());
    if (there.sequence > 0)
        text += fmt::format(", inside {}", to_string(there));
    else if (last.sequence > 0)
        text += fmt::format(", after {}", to_string(last));
    return text;
}

std::string describe_hang(HostBoard const& board, double limit_s) {
    auto const by_sequence = [](RankStatus const& a, RankStatus const& b) {
        return a.begun.load().sequence < b.begun.load().sequence;
    };
    auto const by_silence = [](RankStatus const& a, RankStatus const& b) { return silence(a) < silence(b); };
    RankStatus const& quiet = *std::ranges::max_element(board.ranks, by_silence);
    RankStatus const& late = *std::ranges::min_element(board.ranks, by_sequence);
    bool const stopped = silence(quiet) > kSilentSeconds;
    RankStatus const& culprit = stopped ? quiet : late;
    NumberedCollective const waiting = waiting_for(board, culprit);

    std::string const limit = fmt::format("limit {:g} s", limit_s);
    if (!stopped && culprit.waits_in().sequence > 0) {
        // Whoever is ahead of them: they cannot both be in the collective of that number.
        if (std::string const text = different_waits(board); !text.empty())
            return fmt::format("{} (in section {} at step {}, {})", text,
                               to_string(static_cast<Section>(culprit.section.load())), culprit.step.load(), limit);
    }
    if (!stopped && waiting.sequence == 0 && culprit.waits_in().sequence > 0)
        return fmt::format("every rank of host {} waits {} ({}): a rank of another host, a GPU, or the network",
                           host_name(), describe_place(culprit), limit);
    std::string text = fmt::format("{} hangs {}", who(culprit), describe_place(culprit));
    if (stopped) text += fmt::format(", no sign of life for {:.0f} s", silence(culprit));
    if (waiting.sequence > 0) text += fmt::format("; it has not reached {}, where others wait", to_string(waiting));
    return fmt::format("{} ({})", text, limit);
}

Watchdog::Watchdog(WatchdogOptions const& options, FileSystem& files, EndJob end, bool has_launcher)
    : options_(options),
      files_(&files),
      launcher_(has_launcher),
      board_{{&alone_, 1}, 0},
      end_alone_(std::move(end)),
      end_job_(end_alone_) {
    alone_.pid = ::getpid();
    seen_alive_.assign(1, false);
    enter(Section::setup, 0);
    thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
    {
        std::scoped_lock const lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void Watchdog::limit_by(WatchdogOptions const& options) {
    std::scoped_lock const lock(mutex_);
    options_ = options;
    limit_s_ = limit(static_cast<Section>(board_.mine().section.load()));
}

void Watchdog::join(HostBoard const& board, EndJob end) {
    std::scoped_lock const lock(mutex_);
    board_ = board;
    board_.mine().beat = steady_nanoseconds();
    end_job_ = std::move(end);
    joined_ = true;
    seen_alive_.assign(board.ranks.size(), false);
    dead_peer();  // sees who is there
}

void Watchdog::part() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !ending_; });
    board_ = {{&alone_, 1}, 0};
    end_job_ = end_alone_;
    joined_ = false;
    parted_ = true;
    seen_alive_.assign(1, false);
}

bool Watchdog::hold_stop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !ending_; });
    holds_stop_ = true;
    return !stop_requested();
}

void Watchdog::enter(Section section, int64_t step) {
    std::scoped_lock const lock(mutex_);
    auto const now = Clock::now();
    RankStatus& mine = board_.mine();
    if (sections_entered_ > 0 && static_cast<Section>(mine.section.load()) == Section::step) {
        if (step_seconds_.size() < kStepsRemembered) step_seconds_.push_back(0);
        step_seconds_[steps_seen_++ % kStepsRemembered] = seconds(now - entered_);
    }
    mine.section = static_cast<int32_t>(section);
    mine.step = step;
    entered_ = now;
    limit_s_ = limit(section);
    ++sections_entered_;
}

void Watchdog::report_into(Path folder) {
    std::scoped_lock const lock(mutex_);
    folder_ = std::move(folder);
}

void Watchdog::ask(std::function<std::string()> group_failure) {
    std::scoped_lock const lock(mutex_);
    group_failure_ = std::move(group_failure);
}

void Watchdog::record(Category category, std::string const& message) noexcept {
    Path folder;
    {
        std::scoped_lock const lock(mutex_);
        folder = folder_;
    }
    if (!folder.empty()) write_failure(*files_, folder, board_.mine(), category, message);
}

double Watchdog::limit(Section section) const {
    switch (section) {
        case Section::setup:
            return options_.setup_s;
        case Section::first_step:
            return options_.first_step_s;
        case Section::save:
            return options_.save_s;
        case Section::eval:
            return options_.eval_s;
        case Section::step:
            break;
    }
    if (options_.step_s > 0) return options_.step_s;
    auto recent = step_seconds_;
    if (recent.empty()) return options_.first_step_s;
    auto const middle = recent.begin() + std::ssize(recent) / 2;
    std::nth_element(recent.begin(), middle, recent.end());
    return std::max(kLeastStepLimit, kStepLimitInMedians * *middle);
}

void Watchdog::watch() {
    // Time counts by ticks of this thread, so that a job that was stopped as a whole, or a machine that slept, can go
    // on afterwards.
    double spent = 0;
    int64_t watched = 0;
    auto before = Clock::now();
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kTick, [this] { return stop_; })) {
        auto const now = Clock::now();
        spent = watched == sections_entered_ ? spent + std::min(seconds(now - before), 1.0) : 0;
        watched = sections_entered_;
        before = now;
        board_.mine().beat = steady_nanoseconds();
        auto const ending = why_to_end(options_.enabled && spent > limit_s_);
        if (!ending) continue;
        ending_ = true;
        lock.unlock();
        end(*ending);
        lock.lock();
        ending_ = false;
        changed_.notify_all();
        return;
    }
}

std::optional<Watchdog::Ending> Watchdog::why_to_end(bool late) {
    auto const error = [](Category category, std::string const& what) {
        return Ending{.exit_code = static_cast<int>(category),
                      .message = fmt::format("{} error: {}", to_string(category), what)};
    };
    if (launcher_.is_gone()) {
        Ending ending = error(Category::communication,
                              fmt::format("the launcher of this job (process {}) has died", launcher_.pid()));
        ending.at_once = true;
        return ending;
    }
    if (std::string const dead = dead_peer(); !dead.empty()) {
        Ending ending = error(Category::communication, dead);
        ending.patience = kLauncherPatience;
        return ending;
    }
    if (a_peer_left() || must_stop()) {
        return Ending{.exit_code = kExitPreempted, .message = "told to stop: nothing to save yet", .at_once = true};
    }
    if (std::string const failed = failed_group(); !failed.empty()) return error(Category::communication, failed);
    if (!late) return std::nullopt;
    if (joined_) return error(Category::hang, describe_hang(board_, limit_s_));
    Ending ending = error(
        Category::hang,
        fmt::format(
            "process {} on host {} waits in {} for ranks that hang, did not start or cannot be reached (limit {:g} s)",
            alone_.pid.load(), host_name(), parted_ ? "MPI_Finalize" : "MPI_Init", limit_s_));
    ending.patience = kLauncherPatience;
    return ending;
}

bool Watchdog::must_stop() {
    if (launcher_.asks_to_stop()) request_stop();
    if (holds_stop_ || !stop_requested()) return false;
    if (!told_to_stop_) told_to_stop_ = Clock::now();
    bool const joins = !joined_ && launcher_.pid() != 0;  // then it stops once it has joined
    return !joins || seconds(Clock::now() - *told_to_stop_) >= kJoinPatienceSeconds;
}

bool Watchdog::a_peer_left() const {
    return std::ranges::any_of(board_.ranks, [](RankStatus const& rank) { return rank.left.load(); });
}

std::string Watchdog::failed_group() {
    std::string const what = group_failure_ ? group_failure_() : "";
    if (what.empty()) return "";
    if (!group_failed_) group_failed_ = Clock::now();
    if (Clock::now() - *group_failed_ < kEchoPatience) return "";
    return fmt::format("rank {}, {}: {}", board_.mine().rank.load(), describe_place(board_.mine()), what);
}

std::string Watchdog::dead_peer() {
    for (size_t i = 0; i < board_.ranks.size(); ++i) {
        RankStatus const& peer = board_.ranks[i];
        if (i == board_.own || peer.leaving.load()) continue;
        bool const there = ::kill(peer.pid.load(), 0) == 0 || errno != ESRCH;
        // Only a process that could once be seen can be missed: ranks may live in containers of their own.
        if (there) seen_alive_[i] = true;
        if (there || !seen_alive_[i] || peer.leaving.load()) continue;
        return fmt::format("{} died {}", who(peer), describe_place(peer));
    }
    return "";
}

void Watchdog::end(Ending const& ending) {
    if (ending.exit_code != kExitPreempted) record(static_cast<Category>(ending.exit_code), ending.message);
    end_job_(ending);
}

}  // namespace perigee
