#include "io/bus_errors.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/printable.h"

namespace perigee {

/// One noted range. The handler walks the list without a lock, so ranges are never freed, only used again.
struct BusErrorScope::Range {
    std::atomic<uintptr_t> begin{0};  ///< 0: not in use
    std::atomic<uintptr_t> end{0};
    std::string message;
    Range* next = nullptr;
};

namespace {

// Signals belong to the process, and so does this list.
struct Ranges {
    std::mutex mutex;
    std::atomic<BusErrorScope::Range*> first{nullptr};
    struct sigaction before {};
    bool installed = false;
};
Ranges& ranges() {
    static Ranges* const instance = new Ranges;  // never destroyed: a fault may come at exit
    return *instance;
}

/// Only what POSIX allows inside a handler.
void on_bus_error(int, siginfo_t* info, void*) {
    auto const at = reinterpret_cast<uintptr_t>(info->si_addr);
    for (auto const* range = ranges().first.load(); range != nullptr; range = range->next) {
        uintptr_t const begin = range->begin.load();
        if (begin == 0 || at < begin || at >= range->end.load()) continue;
        [[maybe_unused]] auto const written = ::write(STDERR_FILENO, range->message.data(), range->message.size());
        ::_exit(static_cast<int>(Category::data));
    }
    ::sigaction(SIGBUS, &ranges().before, nullptr);  // the instruction runs again, and meets the handler before
}

void install_handler() {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &ranges().before);
}

}  // namespace

BusErrorScope::BusErrorScope(std::span<std::byte const> bytes, std::string const& path) {
    Ranges& all = ranges();
    std::scoped_lock const lock(all.mutex);
    range_ = all.first.load();
    while (range_ != nullptr && range_->begin.load() != 0) range_ = range_->next;
    bool const fresh = range_ == nullptr;
    if (fresh) range_ = new Range;
    range_->message = fmt::format(
        "perigee: data error: {} shrank while it was in use, or its disk failed: restore it, and leave data alone "
        "while "
        "a run reads it\n",
        printable_name(path));
    auto const begin = reinterpret_cast<uintptr_t>(bytes.data());
    range_->end = begin + bytes.size();
    range_->begin = begin;
    if (fresh) {
        range_->next = all.first.load();
        all.first = range_;
    }
    if (!std::exchange(all.installed, true)) install_handler();
}

BusErrorScope::~BusErrorScope() { range_->begin = 0; }

}  // namespace perigee
