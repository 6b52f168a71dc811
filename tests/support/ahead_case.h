// Texts whose steps are queued ahead of their tokens are those of steps in turn.
#pragma once

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "model/kv_cache.h"
#include "ops/sampling.h"

namespace perigee::testing {

/// `Job` has cache(), next(ids, cache), which appends ids, and draw(id, cache, rule, ahead), which appends one and
/// returns the next.
template <class Job>
class AheadCase {
  public:
    AheadCase(Job& job, bool ahead) : job_(&job), ahead_(ahead) {}

    /// Continues the text of `cache` from `id` by `count` tokens.
    std::vector<int32_t> go_on(KvCache& cache, int32_t id, int count) {
        std::vector<int32_t> ids;
        for (int i = 0; i < count; ++i) {
            DrawRule const rule{
                .temperature = 1.5, .top_p = 0.95, .random = Philox(3, Purpose::generate), .index = cache.tokens()};
            ids.push_back(id = job_->draw(id, cache, rule, ahead_));
        }
        return ids;
    }

    /// A text to its end; one that goes back; one that another follows in the same memory, as long and with the same
    /// next id; two in turn.
    std::vector<std::vector<int32_t>> all(std::vector<int32_t> const& prompt) {
        std::vector<int32_t> other = prompt;
        std::swap(other[3], other[17]);
        std::vector<std::vector<int32_t>> texts;
        KvCache cache = started(prompt);
        texts.push_back(go_on(cache, 5, 60));
        cache.set_tokens(std::ssize(prompt) + 20);
        texts.push_back(go_on(cache, texts[0][20], 15));
        cache.set_tokens(std::ssize(prompt));
        texts.push_back(go_on(cache, 6, 1));
        int32_t const next = texts.back().front();
        cache.clear(0);
        job_->next(other, cache);
        job_->next(std::vector<int32_t>{6}, cache);
        texts.push_back(go_on(cache, next, 15));
        KvCache first = started(prompt), second = started(other);
        for (int i = 0; i < 8; ++i)
            for (KvCache* its : {&first, &second}) texts.push_back(go_on(*its, 7 + i, 1));
        return texts;
    }

  private:
    KvCache started(std::vector<int32_t> const& prompt) {
        KvCache cache = job_->cache();
        job_->next(prompt, cache);
        return cache;
    }

    Job* job_;
    bool ahead_;
};

}  // namespace perigee::testing
