#include "eval/sampling.h"

#include <algorithm>
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
             "draw from that many of the most likely tokens, plus ties with the last; 0: all")
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
             "GiB for keys and values of the prompts that are answered at a time and for the scratch memory of "
             "decoding; 0: as much as they may need")
        .add("logprobs", options.logprobs, "also write the log-probability of every token of an answer")
        .add("chat", options.chat,
             "converse on the terminal: each line of input is a message, and the conversation's keys and values are "
             "kept between them; needs a chat.template");
}

namespace {

std::span<float const> first(std::span<float const> logits, int64_t allowed) {
    PERIGEE_CHECK(0 < allowed && allowed <= std::ssize(logits), "{} of {} logits", allowed, logits.size());
    return logits.first(static_cast<size_t>(allowed));
}

}  // namespace

int32_t sample_token(std::span<float const> logits, int64_t allowed, SamplingOptions const& options,
                     Philox const& random, int64_t index, std::span<int32_t const> seen) {
    return draw_token(first(logits, allowed), draw_rule(options, random, index), seen);
}

DrawRule draw_rule(SamplingOptions const& options, Philox const& random, int64_t index) {
    return {.temperature = options.temperature,
            .top_p = options.top_p,
            .min_p = options.min_p,
            .repetition_penalty = options.repetition_penalty,
            .top_k = options.top_k,
            .random = random,
            .index = index};
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
    int32_t const id = draw_token(first(logits, allowed_), next_rule(), seen_);
    take(id);
    return id;
}

void Sampler::take(int32_t id) {
    ++drawn_;
    see({&id, 1});
}

std::vector<int32_t> Sampler::seen_words() const {
    std::vector<int32_t> words(static_cast<size_t>((allowed_ + 31) / 32));
    for (int32_t const id : seen_) words[static_cast<size_t>(id / 32)] |= static_cast<int32_t>(1u << id % 32);
    return words;
}

double log_probability(std::span<float const> logits, int32_t id) {
    return static_cast<double>(logits[static_cast<size_t>(id)]) - log_sum(logits);
}

std::vector<TokenLogprob> likeliest(std::span<float const> logits, int64_t allowed, int64_t count) {
    double const norm = log_sum(logits);
    logits = first(logits, allowed);
    struct Candidate {
        float logit = -std::numeric_limits<float>::infinity();
        int32_t id = -1;
    };
    std::vector<Candidate> top(static_cast<size_t>(std::min(count, std::ssize(logits))));
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
