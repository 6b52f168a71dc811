#include "eval/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

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
        .add("top_p", options.top_p, {.low = 0, .high = 1, .strict_low = true},
             "draw from the fewest most likely tokens whose probabilities reach this sum; 1 draws from all")
        .add("input", options.input, "file of prompts, one JSON object a line, in place of prompt; needs output")
        .add("output", options.output, "file that receives their answers, one JSON object a line in the same order")
        .add("batch", options.batch, between(1, 4096), "prompts of the file that are answered at a time")
        .add("cache_gib", options.cache_gib, at_least(0),
             "GiB for the keys and values of prompts that are answered at a time; 0: as much as they may need")
        .add("logprobs", options.logprobs, "also write the log-probability of every token of an answer");
}

int32_t sample_token(std::span<float const> logits, int64_t allowed, SamplingOptions const& options,
                     Philox const& random, int64_t index) {
    PERIGEE_CHECK(0 < allowed && allowed <= static_cast<int64_t>(logits.size()), "{} of {} logits", allowed,
                  logits.size());
    logits = logits.first(static_cast<size_t>(allowed));
    for (float const x : logits) {
        if (std::isnan(x) || (std::isinf(x) && x > 0)) fail(Category::numeric, "a logit of token {} is {}", index, x);
    }
    auto const best = static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (std::isinf(logits[best])) fail(Category::numeric, "all logits of token {} are -inf", index);
    if (options.temperature == 0) return static_cast<int32_t>(best);

    auto const weight = [&](size_t id) {
        return std::exp((static_cast<double>(logits[id]) - static_cast<double>(logits[best])) / options.temperature);
    };
    double sum = 0;
    for (size_t id = 0; id < logits.size(); ++id) sum += weight(id);
    // Equal logits in order of id, so that the choice does not depend on the sorting algorithm. Few tokens usually make
    // up the nucleus: more are sorted only where these do not reach top_p.
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::vector<double> cumulative;
    auto const enough = [&] {
        return !cumulative.empty() && (cumulative.back() >= options.top_p * sum || cumulative.size() == order.size());
    };
    for (size_t count = 256; !enough(); count *= 16) {
        auto const sorted = order.begin() + static_cast<int64_t>(std::min(count, order.size()));
        std::partial_sort(order.begin(), sorted, order.end(), [&](int32_t a, int32_t b) {
            float const x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
            return x > y || (x == y && a < b);
        });
        cumulative.clear();
        double reached = 0;
        for (auto id = order.begin(); id != sorted; ++id)
            cumulative.push_back(reached += weight(static_cast<size_t>(*id)));
    }
    // The nucleus ends with the token that reaches top_p. Source: Holtzman et al., "The Curious Case of Neural Text
    // Degeneration", ICLR 2020.
    auto const end = std::lower_bound(cumulative.begin(), cumulative.end(), options.top_p * sum);
    double const nucleus = end == cumulative.end() ? cumulative.back() : *end;
    double const drawn = random.uniform(static_cast<uint64_t>(index)) * nucleus;
    auto const chosen = std::upper_bound(cumulative.begin(), cumulative.end(), drawn);
    return order[static_cast<size_t>(chosen - cumulative.begin())];
}

}  // namespace perigee
