#include "serve/queue.h"

#include <functional>

namespace perigee::serve {

void Exchange::start() {
    std::scoped_lock const lock(mutex_);
    started_ = true;
    changed_.notify_all();
}

void Exchange::post(Event event) {
    std::scoped_lock const lock(mutex_);
    started_ = started_ || !std::holds_alternative<Failed>(event.what);
    events_.push_back(std::move(event));
    changed_.notify_all();
}

bool Exchange::wait_for_start(std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [this] { return started_ || !events_.empty(); });
    return started_;
}

std::deque<Event> Exchange::take(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [this] { return !events_.empty(); });
    return std::exchange(events_, {});
}

bool WaitingTexts::submit(std::shared_ptr<Exchange> const& exchange) {
    std::scoped_lock const lock(mutex_);
    drop_abandoned();
    if (!why_closed_.empty() || std::ssize(entries_) + std::ssize(exchange->tasks()) > most_) return false;
    for (size_t task = 0; task < exchange->tasks().size(); ++task) entries_.push_back({exchange, task});
    changed_.notify_all();
    return true;
}

void WaitingTexts::close(std::string const& why) {
    std::scoped_lock const lock(mutex_);
    why_closed_ = why;
    for (Entry const& entry : entries_) entry.exchange->post({entry.task, Failed{why}});
    entries_.clear();
}

std::string WaitingTexts::why_closed() {
    std::scoped_lock const lock(mutex_);
    return why_closed_;
}

int64_t WaitingTexts::size() {
    std::scoped_lock const lock(mutex_);
    drop_abandoned();
    return std::ssize(entries_);
}

std::optional<WaitingTexts::Entry> WaitingTexts::front(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [this] {
        drop_abandoned();
        return !entries_.empty();
    });
    return entries_.empty() ? std::nullopt : std::optional(entries_.front());
}

void WaitingTexts::drop_abandoned() { std::erase_if(entries_, std::mem_fn(&Entry::abandoned)); }

void WaitingTexts::remove(Entry const& entry) {
    std::scoped_lock const lock(mutex_);
    std::erase_if(entries_, [&](Entry const& waiting) {
        return waiting.exchange == entry.exchange && waiting.task == entry.task;
    });
}

void WaitingTexts::put_back(Entry entry) {
    std::scoped_lock const lock(mutex_);
    if (why_closed_.empty())
        entries_.push_front(std::move(entry));
    else
        entry.exchange->post({entry.task, Failed{why_closed_}});
}

}  // namespace perigee::serve
