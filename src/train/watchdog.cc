#include "train/watchdog.h"

#include <signal.h>

#include <algorithm>
#include <cerrno>

namespace perigee {

namespace {

constexpr std::chrono::milliseconds kTick{100};
/// A rank that has not shown a sign of life for so long is stopped, or its machine is far too busy.
constexpr double kSilentSeconds = 1;
/// mpirun sees a rank die as well, knows the signal, and needs two seconds to end the others.
constexpr std::chrono::seconds kLauncherPatience{4};
constexpr size_t kStepsRemembered = 32;
constexpr double kLeastStepLimit = 60, kStepLimitInMedians = 10;

double seconds(auto duration) { return std::chrono::duration<double>(duration).count(); }

double silence(RankStatus const& status) {
    return static_cast<double>(steady_nanoseconds() - status.beat.load()) * 1e-9;
}

std::string who(RankStatus const& status) {
    return fmt::format("rank {} (process {} on host {})", status.rank.load(), status.pid.load(), host_name());
}

/// The collective that `late` has not reached and others wait in; null where nobody is ahead of it.
RankStatus const* waiting_for(HostBoard const& board, RankStatus const& late) {
    RankStatus const* found = nullptr;
    for (RankStatus const& other : board.ranks) {
        if (&other == &late || !other.inside.load() || other.sequence.load() <= late.sequence.load()) continue;
        if (found == nullptr || other.sequence.load() < found->sequence.load()) found = &other;
    }
    return found;
}

}  // namespace

void describe(Schema& schema, WatchdogOptions& options) {
    constexpr double kLeast = 0.1, kMost = 1e9;
    schema
        .add("enabled", options.enabled,
             "end the job when a part of it takes longer than its limit, and name the rank that hangs")
        .add("setup_s", options.setup_s, between(kLeast, kMost), "limit for opening data and checkpoint, in seconds")
        .add("first_step_s", options.first_step_s, between(kLeast, kMost), "limit for the first step")
        .add("step_s", options.step_s, between(0, kMost),
             "limit for a later step; 0: 10 times the median of recent steps, and 60 at least")
        .add("save_s", options.save_s, between(kLeast, kMost), "limit for what a step waits for a checkpoint")
        .add("eval_s", options.eval_s, between(kLeast, kMost), "limit for an evaluation");
}

std::string describe_place(RankStatus const& status) {
    int64_t const sequence = status.sequence.load();
    std::string text = fmt::format("in section {} at step {}", to_string(static_cast<Section>(status.section.load())),
                                   status.step.load());
    if (sequence > 0) {
        text += fmt::format(", {} {} #{}", status.inside.load() ? "inside" : "after",
                            to_string(status.collective.load()), sequence);
    }
    return text;
}

std::string describe_hang(HostBoard const& board, double limit_s) {
    auto const by_sequence = [](RankStatus const& a, RankStatus const& b) {
        return a.sequence.load() < b.sequence.load();
    };
    auto const by_silence = [](RankStatus const& a, RankStatus const& b) { return silence(a) < silence(b); };
    RankStatus const& quiet = *std::ranges::max_element(board.ranks, by_silence);
    RankStatus const& late = *std::ranges::min_element(board.ranks, by_sequence);
    bool const stopped = silence(quiet) > kSilentSeconds;
    RankStatus const& culprit = stopped ? quiet : late;
    RankStatus const* const waiting = waiting_for(board, culprit);

    std::string const limit = fmt::format("limit {:g} s", limit_s);
    if (!stopped && waiting == nullptr && culprit.inside.load()) {
        return fmt::format("every rank of host {} waits {} ({}): a rank of another host, or the network", host_name(),
                           describe_place(culprit), limit);
    }
    std::string text = fmt::format("{} hangs {}", who(culprit), describe_place(culprit));
    if (stopped) text += fmt::format(", no sign of life for {:.0f} s", silence(culprit));
    if (waiting != nullptr) {
        text += fmt::format("; it has not reached {} #{}, where others wait", to_string(waiting->collective.load()),
                            waiting->sequence.load());
    }
    return fmt::format("{} ({})", text, limit);
}

Watchdog::Watchdog(WatchdogOptions const& options, HostBoard const& board, FileSystem& files, EndJob end_job)
    : options_(options),
      board_(board),
      files_(&files),
      end_job_(std::move(end_job)),
      seen_alive_(board.ranks.size(), false) {
    enter(Section::setup, 0);
    dead_peer();  // sees who is there
    thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
    {
        std::scoped_lock const lock(mutex_);
        stop_ = true;
    }
    stop_requested_.notify_all();
    thread_.join();
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
    while (!stop_requested_.wait_for(lock, kTick, [this] { return stop_; })) {
        auto const now = Clock::now();
        spent = watched == sections_entered_ ? spent + std::min(seconds(now - before), 1.0) : 0;
        watched = sections_entered_;
        before = now;
        board_.mine().beat = steady_nanoseconds();
        bool const late = options_.enabled && spent > limit_s_;
        double const limit_s = limit_s_;
        lock.unlock();
        if (std::string const dead = dead_peer(); !dead.empty())
            return end(Category::communication, dead, kLauncherPatience);
        if (late) return end(Category::hang, describe_hang(board_, limit_s), std::chrono::seconds(0));
        lock.lock();
    }
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

void Watchdog::end(Category category, std::string const& message, std::chrono::seconds patience) {
    record(category, message);
    end_job_(static_cast<int>(category), fmt::format("{} error: {}", to_string(category), message), patience);
}

}  // namespace perigee
