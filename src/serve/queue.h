// Between the threads that talk to clients and the one that runs the model: texts that wait, and what comes of them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "serve/choice.h"
#include "train/batch_generator.h"

namespace perigee::serve {

/// One text of a request.
struct Task {
    GenerationRequest generation;
    bool scores = false;    ///< of the prompt's tokens
    bool generates = true;  ///< beyond what the scores say
};

/// Of one task.
struct Failed {
    std::string message;
};
struct Event {
    size_t task = 0;
    std::variant<PromptScores, GeneratedToken, Failed> what;
};

/// The tasks of one request, and their events. Any thread.
class Exchange {
  public:
    explicit Exchange(std::vector<Task> tasks)
        : tasks_(std::move(tasks)), over_(std::make_unique<std::atomic<bool>[]>(tasks_.size())) {}
    std::vector<Task> const& tasks() const { return tasks_; }

    /// Nobody waits for all of it, or for one of its tasks, any longer.
    void abandon() { abandoned_ = true; }
    void abandon(size_t task) { over_[task] = true; }
    bool abandoned(size_t task) const { return abandoned_ || over_[task]; }

    void start();
    void post(Event event);
    /// Waits until the model has begun with a task; false after the deadline, or where one has failed before.
    bool wait_for_start(std::chrono::steady_clock::time_point deadline);
    /// What has come; waits for something so long at most.
    std::deque<Event> take(std::chrono::milliseconds patience);

  private:
    std::vector<Task> const tasks_;
    std::unique_ptr<std::atomic<bool>[]> const over_;
    std::atomic<bool> abandoned_ = false;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool started_ = false;
    std::deque<Event> events_;
};

/// Texts that wait, in order. Any thread.
class WaitingTexts {
  public:
    explicit WaitingTexts(int64_t most) : most_(most) {}

    /// False where the queue has no room, or is closed.
    bool submit(std::shared_ptr<Exchange> const& exchange);
    /// Empty while it is open.
    std::string why_closed();
    /// Takes no more; those that wait fail.
    void close(std::string const& why);
    int64_t size();

    struct Entry {
        std::shared_ptr<Exchange> exchange;
        size_t task = 0;
        bool scored = false;
        Task const& what() const { return exchange->tasks()[task]; }
        bool abandoned() const { return exchange->abandoned(task); }
    };
    /// The first that is not abandoned; waits for one so long at most. Only the model's thread takes.
    std::optional<Entry> front(std::chrono::milliseconds patience);
    void remove(Entry const& entry);
    void put_back(Entry entry);

  private:
    void drop_abandoned();

    int64_t const most_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Entry> entries_;
    std::string why_closed_;
};

}  // namespace perigee::serve
