// Many prompts at once: each answer is that of its prompt alone, whatever the batch, the pages and the others.
#include "train/batch_generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <numeric>

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
        for (float const x : logits) sum += std::exp(static_cast<double>(x));
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

TEST(BatchGenerator, DrawsTheSameBesideTheLogitsAndOnTheHost) {
    auto const world = make_single_host_comm();
    Job job(*world);
    auto asked = requests();
    for (size_t i = 0; i < asked.size(); ++i) {
        asked[i].sampling.repetition_penalty = i % 3 == 0 ? 1 : 1.5;
        asked[i].sampling.top_k = i % 4 == 0 ? 7 : 0;
    }
    auto const on_host = job.answers(limits_of(3), asked);
    // If a running text wants log-probabilities, all texts of that step are drawn on the host.
    for (int64_t const every : {1, 4}) {
        auto some = asked;
        for (size_t i = 0; i < some.size(); ++i) some[i].logprobs = i % 4 == 1 && every == 4;
        auto const found = job.answers(limits_of(3), some);
        for (size_t i = 0; i < some.size(); ++i) {
            EXPECT_EQ(found[i].ids, on_host[i].ids) << i;
            EXPECT_EQ(found[i].finish, on_host[i].finish) << i;
        }
    }
    auto const without_penalty = job.answers(limits_of(3), requests());
    int64_t changed = 0;
    for (size_t i = 0; i < asked.size(); ++i) changed += without_penalty[i].ids != on_host[i].ids;
    EXPECT_GT(changed, 1);
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
    job.passes = 0;
    EXPECT_THROW(job.answers(limits, asked), Error);
    EXPECT_EQ(job.passes, 0);
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

TEST(BatchGenerator, LongPromptsAreReadInChunksBetweenStepsOfTheOthers) {
    auto const world = make_single_host_comm();
    Job job(*world);
    BatchLimits limits = limits_of(2);
    limits.chunk_tokens = 16;
    BatchGenerator generator(job.session, job.session.selections(0), limits);
    GenerationRequest quick{.ids = {1, 2, 3}, .sampling = {.max_tokens = 9, .temperature = 0}}, slow = quick;
    slow.ids.assign(100, 4);
    ASSERT_EQ(generator.begin(quick), 0);
    ASSERT_EQ(generator.begin(slow), 1);
    EXPECT_EQ(generator.begin(quick), std::nullopt);
    int64_t quick_tokens = 0, quick_before_slow = -1;
    while (!generator.idle())
        for (GeneratedToken const& token : generator.step([] {})) {
            quick_tokens += token.text == 0;
            if (token.text == 1 && quick_before_slow < 0) quick_before_slow = quick_tokens;
        }
    EXPECT_EQ(quick_tokens, 9);
    EXPECT_GE(quick_before_slow, 6);
}

TEST(BatchGenerator, PagesComeAndGoWithTenThousandRequests) {
    auto const world = make_single_host_comm();
    Job job(*world);
    constexpr int64_t kTexts = 6, kPages = 20, kPage = 8;
    BatchLimits limits = limits_of(kTexts);
    limits.text_tokens = 60;
    limits.cache_bytes =
        kPages * KvCache::page_bytes(job.session.ops(), job.session.options().model, job.session.mesh().shape(), kPage);
    BatchGenerator generator(job.session, job.session.selections(0), limits);
    int64_t const bytes = generator.cache().bytes();
    ASSERT_EQ(generator.cache().free_pages(), kPages);
    ASSERT_EQ(generator.most_tokens(), 60);
    Philox const random(21, Purpose::mock_data);
    uint64_t next = 0;
    auto const below = [&](uint64_t n) { return static_cast<int64_t>(random.below(next++, n)); };
    std::vector<int64_t> pages(kTexts);  // expected, of the texts that run
    int64_t arrived = 0, refused = 0, dropped = 0, ended = 0;
    auto const expect_pages = [&] {
        ASSERT_EQ(generator.cache().free_pages(), kPages - std::accumulate(pages.begin(), pages.end(), int64_t{0}));
        ASSERT_EQ(generator.cache().bytes(), bytes);
        ASSERT_EQ(generator.running(), kTexts - std::ranges::count(pages, 0));
    };
    while (arrived < 10'000) {
        GenerationRequest request{.ids = std::vector<int32_t>(static_cast<size_t>(1 + below(30)), 7),
                                  .sampling = {.max_tokens = 1 + below(4), .temperature = 0},
                                  .stop = {5}};
        int64_t const needed = (generator.longest(request) + kPage - 1) / kPage;
        bool const fits = std::ranges::count(pages, 0) > 0 && needed <= generator.cache().free_pages();
        auto const text = generator.begin(request);
        ASSERT_EQ(text.has_value(), fits);
        if (text) {
            ASSERT_EQ(pages[static_cast<size_t>(*text)], 0);
            pages[static_cast<size_t>(*text)] = needed;
            ++arrived;
        } else {
            ++refused;
        }
        expect_pages();
        if (below(3) == 0) {  // a client leaves
            auto const leaves = static_cast<size_t>(below(kTexts));
            if (pages[leaves] > 0) {
                generator.drop(static_cast<int64_t>(leaves));
                pages[leaves] = 0;
                ++dropped;
            }
            expect_pages();
        }
        if (text && below(4) != 0) continue;
        for (GeneratedToken const& token : generator.step([] {})) {
            ASSERT_GT(pages[static_cast<size_t>(token.text)], 0);
            if (token.finish) pages[static_cast<size_t>(token.text)] = 0, ++ended;
        }
        expect_pages();
    }
    EXPECT_GT(refused, 1000);
    EXPECT_GT(dropped, 1000);
    EXPECT_GT(ended, 1000);
}

TEST(BatchGenerator, LogprobsNameTheLikeliestToo) {
    auto const world = make_single_host_comm();
    Job job(*world);
    BatchGenerator generator(job.session, job.session.selections(0), limits_of(1));
    generator.begin({.ids = {1, 2}, .sampling = {.max_tokens = 6, .temperature = 0}, .logprobs = true, .top = 3});
    int64_t tokens = 0;
    while (!generator.idle())
        for (GeneratedToken const& token : generator.step([] {})) {
            ++tokens;
            ASSERT_EQ(token.top.size(), 3u);
            EXPECT_EQ(token.top[0].id, token.id);
            EXPECT_EQ(token.top[0].logprob, token.logprob);
            EXPECT_GT(token.top[0].logprob, token.top[2].logprob);
        }
    EXPECT_EQ(tokens, 6);
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
