#include "base/stop_request.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <initializer_list>

namespace perigee {

namespace {

constexpr int64_t kSameRequestNs = 500'000'000;

// A handler can only reach static storage. 0: nobody asked; else when, in nanoseconds.
std::atomic<int64_t> requested_at{0};
static_assert(std::atomic<int64_t>::is_always_lock_free);

int64_t now_ns() noexcept {
    timespec t{};
    ::clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec + 1;
}

/// False where somebody has asked before, at `earlier`.
bool ask(int64_t& earlier) noexcept {
    earlier = 0;
    return requested_at.compare_exchange_strong(earlier, now_ns());
}

extern "C" void on_stop_signal(int signal) {
    int64_t earlier = 0;
    if (!ask(earlier) && now_ns() - earlier >= kSameRequestNs) _exit(128 + signal);
}

bool is_ignored(int signal) noexcept {
    struct sigaction action {};
    return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

void catch_stop_signals() noexcept {
    struct sigaction action {};
    action.sa_handler = on_stop_signal;
    action.sa_flags = SA_RESTART;
    for (int const signal : {SIGTERM, SIGUSR1}) ::sigaction(signal, &action, nullptr);
    for (int const signal : {SIGINT, SIGHUP})
        if (!is_ignored(signal)) ::sigaction(signal, &action, nullptr);
}

void request_stop() noexcept {
    int64_t earlier = 0;
    ask(earlier);
}

bool stop_requested() noexcept { return requested_at.load() != 0; }

}  // namespace perigee
