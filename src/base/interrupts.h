// Ctrl-C for programs that people talk to: it stops what is being done, not the program.
#pragma once

#include <atomic>
#include <csignal>

namespace perigee {

/// While this lives, SIGINT is counted here and does nothing else. One at a time.
class Interrupts {
  public:
    Interrupts() {
        seen() = false;
        struct sigaction action {};
        action.sa_handler = [](int) { seen() = true; };
        ::sigaction(SIGINT, &action, &before_);
    }
    ~Interrupts() { ::sigaction(SIGINT, &before_, nullptr); }
    Interrupts(Interrupts const&) = delete;
    Interrupts& operator=(Interrupts const&) = delete;

    /// Whether one has come since the last take().
    bool came() const { return seen(); }
    bool take() { return seen().exchange(false); }

  private:
    static std::atomic<bool>& seen() {
        static std::atomic<bool> flag;
        static_assert(std::atomic<bool>::is_always_lock_free);
        return flag;
    }
    struct sigaction before_ {};
};

}  // namespace perigee
