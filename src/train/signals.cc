#include "train/signals.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>

namespace perigee {

namespace {

constexpr std::array kSignals = {SIGTERM, SIGUSR1};

// A handler can only reach static storage.
volatile std::sig_atomic_t requests = 0;

extern "C" void on_stop_signal(int signal) {
    if (requests > 0) _exit(128 + signal);
    requests = 1;
}

void install(void (*handler)(int)) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    for (int const signal : kSignals) sigaction(signal, &action, nullptr);
}

}  // namespace

StopSignal::StopSignal() {
    requests = 0;
    install(on_stop_signal);
}

StopSignal::~StopSignal() { install(SIG_DFL); }

bool StopSignal::requested() const noexcept { return requests > 0; }

}  // namespace perigee
