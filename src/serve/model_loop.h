// The thread that runs the model: takes texts from the queue, computes for all of them together, and posts what comes.
// Every rank runs it; rank 0 has the queue and tells the others what to do in each round.
#pragma once

#include <functional>
#include <map>

#include "serve/queue.h"
#include "train/batch_generator.h"

namespace perigee::serve {

class ModelLoop {
  public:
    /// `pack_tokens`: tokens of prompts that are scored in one forward, at most, unless one alone has more.
    ModelLoop(Session& session, std::vector<Selection> selections, BatchLimits const& limits, int64_t pack_tokens);

    /// Tokens that a text may have at most.
    int64_t most_tokens() const { return generator_.most_tokens(); }
    int64_t running() const { return running_; }
    int64_t free_pages() const { return free_pages_; }

    struct Hooks {
        std::function<void()> alive;      ///< called in each round and before each pass of the model
        std::function<bool()> must_stop;  ///< asked on rank 0
    };
    /// Until it is told to stop: then it closes the queue, and texts that run have some seconds to end. `queue` is null
    /// on other ranks than 0. Collective.
    void run(WaitingTexts* queue, Hooks const& hooks);

  private:
    /// What is done between two steps, the same on every rank.
    struct Round {
        bool last = false;
        std::vector<int64_t> dropped;  ///< texts
        std::vector<GenerationRequest> begun;
        std::vector<std::vector<int32_t>> scored;  ///< prompts, in one forward
        int64_t top = 0;
    };
    static std::string packed(Round const& round);
    static Round unpacked(std::string const& text);

    Round plan(WaitingTexts& queue, Hooks const& hooks);
    void plan_end(WaitingTexts& queue, Hooks const& hooks, Round& round);
    void score(Round const& round, Hooks const& hooks, WaitingTexts* queue);
    void post(GeneratedToken token);
    void count();

    Session& session_;
    std::vector<Selection> const selections_;
    BatchLimits const limits_;
    int64_t const pack_tokens_;
    BatchGenerator generator_;
    std::map<int64_t, WaitingTexts::Entry> texts_;  ///< that run, by their number; on rank 0
    std::vector<WaitingTexts::Entry> to_score_;     ///< those of this round
    std::optional<std::chrono::steady_clock::time_point> told_to_stop_;
    std::atomic<int64_t> running_ = 0, free_pages_ = 0;
};

}  // namespace perigee::serve
