#include "eval/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace perigee {

void describe(Schema& schema, SamplingOptions& options) {
    schema
        .add("prompt", options.prompt,
             "text that `perigee generate` continues or, with a chat.template, what the user says")
        .add("system", options.system, "with a chat.template: the system message before it; empty: none")
        .add("max_tokens", options.max_tokens, between(1, 1 << 30),
             "tokens to generate, unless the document ends before")
        .add("temperature", options.temperature, at_least(0),
             "logits are divided by it: below 1 is more predictable, 0 always takes the most likely token")
        .add("top_k", options.top_k, between(0, 1 << 30),
             "draw from so many of the most likely tokens, and from those as likely as the last of them; 0: all")
        .add("top_p", options.top_p, {.low = 0, .high = 1, .strict_low = true},
             "draw from the fewest most likely tokens whose probabilities reach this sum; 1 draws from all")
        .add("min_p", options.min_p, between(0, 1),
             "draw only tokens that are at least this share as likely as the most likely one")
        .add("repetition_penalty", options.repetition_penalty, {.low = 0, .high = 1e6, .strict_low = true},
             "positive logits of tokens that prompt and answer already have are divided by it, negative ones "
             "multiplied; 1: none")
        .add("input", options.input, "file of prompts, one JSON object a line, in place of prompt; needs output")
        .add("output", options.output, "file that receives their answers, one JSON object a line in the same order")
        .add("batch", options.batch, between(1, 4096), "prompts of the file that are answered at a time")
        .add("cache_gib", options.cache_gib, at_least(0),
             "GiB for the keys and values of prompts that are answered at a time; 0: as much as they may need")
        .add("logprobs", options.logprobs, "also write the log-probability of every token of an answer")
        .add("chat", options.chat,
             "converse on the terminal: each line of input is a message, and the conversation's keys and values are "
             "kept between them; needs a chat.template");
}

namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();
constexpr float kLeastExponent = -87;  ///< e^x is a normal float from here on

/// e^x for x <= 0 within 3e-7, 0 below kLeastExponent. Loops over it vectorise, unlike over the library's.
inline float exp_of(float x) {
    constexpr float kRound = 12582912, kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
    float const clamped = x > kLeastExponent ? x : kLeastExponent;
    float const n = (clamped * kLog2e + kRound) - kRound;  // to the nearest whole number
    float const r = (clamped - n * kLn2High) - n * kLn2Low;
    float p = 1.0f / 720;
    for (float const c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = p * r + c;
    float const y = std::bit_cast<float>(std::bit_cast<int32_t>(p) + static_cast<int32_t>(n) * (1 << 23));
    return x > kLeastExponent ? y : 0.0f;
}

/// How likely a logit is, relative to the best one.
struct Weight {
    float best, scale;
    float operator()(float logit) const {
        float const e = exp_of((logit - best) * scale);
        return logit == kImpossible ? 0.0f : e;
    }
};

constexpr size_t kLanes = 16;  // loops over so many independent results vectorise

double sum_of(Weight const& weight, std::span<float const> logits) {
    constexpr size_t kBlock = 1024;
    double sum = 0;
    for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
        float const* const x = logits.data() + begin;
        size_t const count = std::min(kBlock, logits.size() - begin);
        float lanes[kLanes] = {};
        size_t i = 0;
        for (; i + kLanes <= count; i += kLanes)
            for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += weight(x[i + lane]);
        for (; i < count; ++i) lanes[0] += weight(x[i]);
        for (float const lane : lanes) sum += static_cast<double>(lane);
    }
    return sum;
}

/// The largest logit; NaN where one of them is NaN or infinite.
float largest(std::span<float const> logits) {
    float best[kLanes];
    int broken[kLanes] = {};
    std::ranges::fill(best, kImpossible);
    float const* const x = logits.data();
    auto const look = [&](size_t lane, float value) {
        best[lane] = value > best[lane] ? value : best[lane];
        broken[lane] |= !(value < -kImpossible);
    };
    size_t i = 0;
    for (; i + kLanes <= logits.size(); i += kLanes)
        for (size_t lane = 0; lane < kLanes; ++lane) look(lane, x[i + lane]);
    for (; i < logits.size(); ++i) look(0, x[i]);
    if (std::ranges::count(broken, 0) < std::ssize(broken)) return std::numeric_limits<float>::quiet_NaN();
    return *std::ranges::max_element(best);
}

struct Candidate {
    float logit = 0;
    int32_t id = 0;
    /// Before another one: likelier, or as likely and of higher id.
    bool operator<(Candidate const& other) const { return logit != other.logit ? logit > other.logit : id > other.id; }
};

/// All with logits from `least` on.
std::vector<Candidate> candidates_of(std::span<float const> logits, float least) {
    std::vector<Candidate> candidates;
    for (size_t i = 0; i < logits.size(); ++i)
        if (logits[i] >= least && logits[i] > kImpossible) candidates.push_back({logits[i], static_cast<int32_t>(i)});
    return candidates;
}

/// Without those less likely than number k.
void keep_top(std::vector<Candidate>& candidates, int64_t k) {
    if (k >= std::ssize(candidates)) return;
    auto const last = candidates.begin() + k - 1;
    std::ranges::nth_element(candidates, last, std::ranges::greater(), &Candidate::logit);
    std::erase_if(candidates, [least = last->logit](Candidate const& c) { return c.logit < least; });
}

/// What is drawn from: some of the likeliest tokens, in order.
struct Candidates {
    std::vector<Candidate> tokens;
    double total = 0;       ///< weight of all that top_p counts
    bool complete = false;  ///< none that may be drawn is missing
};

/// As few as it takes to tell what number `uniform` draws.
Candidates likely_enough(std::span<float const> logits, Weight const& weight, SamplingOptions const& options,
                         double uniform) {
    bool const cut = 0 < options.top_k && options.top_k < std::ssize(logits);
    double const everything = cut ? 0 : sum_of(weight, logits);
    constexpr double kStep = 4;  // of exponents
    for (double reach = kStep;; reach += kStep) {
        bool const all = -reach <= static_cast<double>(kLeastExponent);
        Candidates found{candidates_of(logits, weight.best - static_cast<float>(reach * options.temperature)),
                         everything};
        if (cut) {
            if (!all && std::ssize(found.tokens) < options.top_k) continue;
            keep_top(found.tokens, options.top_k);
        }
        double sum = 0;
        for (Candidate const& c : found.tokens) sum += static_cast<double>(weight(c.logit));
        if (cut) found.total = sum;
        bool const nucleus = options.top_p < 1;
        found.complete = all || cut || (!nucleus && std::exp(-reach) < options.min_p);
        bool const enough = sum > (nucleus ? options.top_p : uniform) * found.total;
        if (!found.complete && (!enough || (!nucleus && options.min_p > 0))) continue;
        std::ranges::sort(found.tokens, std::less());
        return found;
    }
}

/// By the inverse of the distribution function, likelier tokens first.
int32_t draw(std::span<float const> logits, float best, SamplingOptions const& options, double uniform) {
    Weight const weight{best, static_cast<float>(std::min(1 / options.temperature, 1e30))};
    Candidates const candidates = likely_enough(logits, weight, options, uniform);
    std::vector<double> cumulative;
    double sum = 0;
    for (Candidate const& c : candidates.tokens) cumulative.push_back(sum += static_cast<double>(weight(c.logit)));
    size_t kept = cumulative.size();
    if (options.top_p < 1) {
        // The nucleus ends with the token that reaches top_p. Source: Holtzman et al., "The Curious Case of Neural Text
        // Degeneration", ICLR 2020.
        auto const last = std::ranges::lower_bound(cumulative, options.top_p * candidates.total);
        kept = std::min(kept, static_cast<size_t>(last - cumulative.begin()) + 1);
    }
    while (kept > 1 && static_cast<double>(weight(candidates.tokens[kept - 1].logit)) < options.min_p) --kept;
    bool const more = !candidates.complete && options.top_p == 1;  // may be drawn, but not by this number
    double const drawn = uniform * (more ? candidates.total : cumulative[kept - 1]);
    auto const chosen = static_cast<size_t>(std::ranges::upper_bound(cumulative, drawn) - cumulative.begin());
    return candidates.tokens[std::min(chosen, kept - 1)].id;
}

/// In place of those that are seen.
std::vector<float> penalised(std::span<float const> logits, std::span<int32_t const> seen, double penalty) {
    std::vector<float> result(logits.begin(), logits.end());
    auto const factor = static_cast<float>(penalty);
    for (int32_t const id : seen) {
        if (id < 0 || id >= std::ssize(result)) continue;
        float& x = result[static_cast<size_t>(id)];
        x = x < 0 ? x * factor : x / factor;
    }
    return result;
}

std::span<float const> first(std::span<float const> logits, int64_t allowed) {
    PERIGEE_CHECK(0 < allowed && allowed <= std::ssize(logits), "{} of {} logits", allowed, logits.size());
    return logits.first(static_cast<size_t>(allowed));
}

/// log of the sum of e^logit.
double log_sum(std::span<float const> logits) {
    float const best = largest(logits);
    return static_cast<double>(best) + std::log(sum_of({best, 1}, logits));
}

}  // namespace

int32_t sample_token(std::span<float const> logits, int64_t allowed, SamplingOptions const& options,
                     Philox const& random, int64_t index, std::span<int32_t const> seen) {
    logits = first(logits, allowed);
    std::vector<float> changed;
    if (options.repetition_penalty != 1 && !seen.empty())
        logits = changed = penalised(logits, seen, options.repetition_penalty);
    float const best = largest(logits);
    if (std::isnan(best)) fail(Category::numeric, "a logit of token {} is no finite number", index);
    if (best == kImpossible) fail(Category::numeric, "all logits of token {} are -inf", index);
    if (options.temperature == 0) return static_cast<int32_t>(std::ranges::find(logits, best) - logits.begin());
    return draw(logits, best, options, random.uniform(static_cast<uint64_t>(index)));
}

Sampler::Sampler(SamplingOptions const& options, int64_t seed, int64_t allowed)
    : options_(options), random_(static_cast<uint64_t>(seed), Purpose::generate), allowed_(allowed) {}

void Sampler::see(std::span<int32_t const> ids) {
    if (options_.repetition_penalty == 1) return;
    is_seen_.resize(static_cast<size_t>(allowed_));
    for (int32_t const id : ids) {
        if (id < 0 || id >= allowed_ || is_seen_[static_cast<size_t>(id)]) continue;
        is_seen_[static_cast<size_t>(id)] = true;
        seen_.push_back(id);
    }
}

int32_t Sampler::draw(std::span<float const> logits) {
    int32_t const id = sample_token(logits, allowed_, options_, random_, drawn_++, seen_);
    see({&id, 1});
    return id;
}

double log_probability(std::span<float const> logits, int32_t id) {
    return static_cast<double>(logits[static_cast<size_t>(id)]) - log_sum(logits);
}

std::vector<TokenLogprob> likeliest(std::span<float const> logits, int64_t allowed, int64_t count) {
    double const norm = log_sum(logits);
    logits = first(logits, allowed);
    std::vector<Candidate> top(static_cast<size_t>(std::min(count, std::ssize(logits))), {kImpossible, -1});
    for (int32_t id = 0; id < std::ssize(logits); ++id) {
        Candidate candidate{logits[static_cast<size_t>(id)], id};
        if (!top.empty() && !(candidate.logit > top.back().logit) && top.back().id >= 0) continue;
        for (Candidate& place : top)
            if (candidate.logit > place.logit || place.id < 0) std::swap(candidate, place);
    }
    std::vector<TokenLogprob> result;
    for (Candidate const& c : top) result.push_back({c.id, static_cast<double>(c.logit) - norm});
    return result;
}

}  // namespace perigee
