// Signals that a thread waits for instead of being interrupted by them.
#pragma once

#include <chrono>
#include <csignal>

namespace perigee {

/// While this lives, the calling thread and those it starts hold back the signals that mean "stop" and that of an ended
/// child: wait() takes them one by one, and no handler sees them.
class HeldSignals {
  public:
    HeldSignals() {
        sigemptyset(&set_);
        for (int const signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGCHLD}) sigaddset(&set_, signal);
        pthread_sigmask(SIG_BLOCK, &set_, &before_);
    }
    ~HeldSignals() { release(); }
    HeldSignals(HeldSignals const&) = delete;
    HeldSignals& operator=(HeldSignals const&) = delete;

    int wait() const {
        int signal = 0;
        sigwait(&set_, &signal);
        return signal;
    }
    /// 0 where none comes until then.
    int wait(std::chrono::steady_clock::time_point until) const {
        using namespace std::chrono;
        for (;;) {
            auto const left = duration_cast<nanoseconds>(until - steady_clock::now()).count();
            if (left <= 0) return 0;
            timespec const time{.tv_sec = left / 1'000'000'000, .tv_nsec = left % 1'000'000'000};
            if (int const signal = sigtimedwait(&set_, nullptr, &time); signal > 0) return signal;
        }
    }
    void release() const { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }  ///< early: in a child process

  private:
    sigset_t set_{}, before_{};
};

}  // namespace perigee
