// Signals that a thread waits for instead of being interrupted by them.
#pragma once

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
    void release() const { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }  ///< early: in a child process

  private:
    sigset_t set_{}, before_{};
};

}  // namespace perigee
