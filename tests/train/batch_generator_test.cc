// Many prompts at once: each answer is that of its prompt alone, whatever the batch, the pages and the others.
#include "train/batch_generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "support/thread_comm.h"
#include "train/sharp_session.h"
#include "train/text_model.h"

namespace perigee::testing {

namespace {

constexpr int64_t kAllowed = SharpSession::kAllowed;

struct Job : SharpSession {
    using SharpSession::SharpSession;

    std::vector<GenerationAnswer> answers(BatchLimits const& limits, std::span<GenerationRequest const> requests) {
        return generate_batch(session, session.selections(0), limits, requests, [this] { ++passes; });
    }
    int64_t passes = 0;
};

BatchLimits limits_of(int64_t texts) {
    return {.texts = texts, .text_tokens = 256, .vocabulary = kAllowed, .chunk_tokens = 40};
}

/// Prompts and answers of many lengths, drawn at a temperature and greedily.
std::vector<GenerationRequest> requests() {
    Philox const random(3, Purpose::mock_data, 2);
    uint64_t next = 0;
    std::vector<GenerationRequest> requests;
    for (int64_t i = 0; i < 13; ++i) {
        GenerationRequest request{.ids = {},
                                  .sampling = {.max_tokens = 1 + 7 * (i % 5), .temperature = i % 2 == 0 ? 0.9 : 0},
                                  .seed = 100 + i,
                                  .stop = {5},
                                  .logprobs = true};
        for (uint64_t t = 1 + random.below(next++, 70); t > 0; --t)
            request.ids.push_back(static_cast<int32_t>(random.below(next++, kAllowed)));
        requests.push_back(request);
    }
    return requests;
}

/// Token by token, alone.
GenerationAnswer answer_alone(Job& job, GenerationRequest const& request, int32_t stop) {
    TextModel model(job.session, job.session.selections(0));
    Philox const random(static_cast<uint64_t>(request.seed), Purpose::generate);
    GenerationAnswer answer;
    std::vector<int32_t> added = request.ids;
    for (int64_t i = 0; i < request.sampling.max_tokens; ++i) {
        auto const logits = model.append(added);
        int32_t const id = sample_token(logits, kAllowed, request.sampling, random, i);
        if (id == stop) {
            answer.finish = Finish::stop;
            break;
        }
        double sum = 0;
        for (int64_t v = 0; v < kAllowed; ++v) sum += std::exp(static_cast<double>(logits[static_cast<size_t>(v)]));
        answer.ids.push_back(id);
        answer.logprobs.push_back(static_cast<double>(logits[static_cast<size_t>(id)]) - std::log(sum));
        added = {id};
    }
    return answer;
}

void expect_same(std::vector<GenerationAnswer> const& found, std::vector<GenerationAnswer> const& want) {
    ASSERT_EQ(found.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(found[i].ids, want[i].ids) << i;
        EXPECT_EQ(found[i].finish, want[i].finish) << i;
        ASSERT_EQ(found[i].logprobs.size(), want[i].logprobs.size());
        for (size_t t = 0; t < want[i].logprobs.size(); ++t)
            EXPECT_NEAR(found[i].logprobs[t], want[i].logprobs[t], 1e-4) << i << " " << t;
    }
}

TEST(BatchGenerator, AnswersAreThoseOfEachPromptAlone) {
    auto const world = make_single_host_comm();
    Job job(*world);
    auto const asked = requests();
    std::vector<GenerationAnswer> alone;
    int64_t stopped = 0;
    for (GenerationRequest const& request : asked) {
        alone.push_back(answer_alone(job, request, 5));
        stopped += alone.back().finish == Finish::stop;
    }
    EXPECT_GT(stopped, 0);
    EXPECT_LT(stopped, std::ssize(asked));
    for (int64_t const texts : {1, 3, 8, 20}) {
        job.passes = 0;
        expect_same(job.answers(limits_of(texts), asked), alone);
        EXPECT_GT(job.passes, 0);
    }
    // A text ends others' turns: fewer passes than one prompt after the other takes.
    job.passes = 0;
    job.answers(limits_of(1), asked);
    int64_t const one_by_one = job.passes;
    job.passes = 0;
    job.answers(limits_of(8), asked);
    EXPECT_LT(job.passes, one_by_one * 2 / 3);
}

TEST(BatchGenerator, PromptsWaitForPages) {
    auto const world = make_single_host_comm();
    Job job(*world);
    auto const asked = requests();
    auto const want = job.answers(limits_of(8), asked);
    BatchLimits limits = limits_of(8);
    int64_t const page =
        KvCache::page_bytes(job.session.ops(), job.session.options().model, job.session.mesh().shape(), 8);
    limits.cache_bytes = 16 * page;  // 128 tokens for all
    expect_same(job.answers(limits, asked), want);
    limits.cache_bytes = 3 * page;
    EXPECT_THROW(job.answers(limits, asked), Error);
}

TEST(BatchGenerator, EndsWhereTheContextEnds) {
    auto const world = make_single_host_comm();
    Job job(*world);
    BatchLimits limits = limits_of(4);
    limits.text_tokens = 40;
    std::vector<GenerationRequest> asked;
    for (size_t const length : {size_t{30}, size_t{39}, size_t{40}, size_t{70}})
        asked.push_back({.ids = std::vector<int32_t>(length, 7), .sampling = {.max_tokens = 25, .temperature = 0}});
    auto const answers = job.answers(limits, asked);
    EXPECT_EQ(answers[0].ids.size(), 10u);
    EXPECT_EQ(answers[1].ids.size(), 1u);
    EXPECT_TRUE(answers[2].ids.empty() && answers[3].ids.empty());
    EXPECT_EQ(answers[3].finish, Finish::length);
    EXPECT_TRUE(job.answers(limits, {}).empty());
}

TEST(BatchGenerator, TensorParallelRanksAnswerAlike) {
    auto const alone = make_single_host_comm();
    auto const asked = requests();
    auto const want = Job(*alone).answers(limits_of(3), asked);
    std::mutex mutex;
    run_ranks(2, [&](HostComm& world) {
        Job job(world, {.tensor = 2});
        auto const found = job.answers(limits_of(3), asked);
        std::lock_guard const lock(mutex);
        expect_same(found, want);
    });
}

}  // namespace

}  // namespace perigee::testing
