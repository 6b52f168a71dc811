// Answers to many prompts at once: texts share a cache and each decoding step, and a prompt begins as soon as one ends
// (continuous batching).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "eval/sampling.h"
#include "train/session.h"

namespace perigee {

struct GenerationRequest {
    std::vector<int32_t> ids;  ///< of the prompt, at least one
    SamplingOptions sampling;  ///< max_tokens, temperature, top_p
    int64_t seed = 0;          ///< of the draws: the text is a function of it and the prompt, not of other requests
};

enum class Finish { stop, length };
char const* to_string(Finish finish);

struct GenerationAnswer {
    std::vector<int32_t> ids;      ///< without those that end it
    std::vector<double> logprobs;  ///< natural, of each id among all allowed ones, before temperature
    Finish finish = Finish::length;
};

struct BatchLimits {
    int64_t texts = 8;          ///< at a time
    int64_t cache_bytes = 0;    ///< 0: room for all of them at their longest
    int64_t text_tokens = 0;    ///< prompt and answer together are shorter
    int64_t vocabulary = 0;     ///< ids that may be drawn
    std::vector<int32_t> stop;  ///< ids that end an answer, one after the other
};

/// Answers in the order of the requests. `before_pass` is called before each pass of the model. Throws Category::config
/// for a prompt that has no room, and on a mesh or GPU without a cache. Collective.
std::vector<GenerationAnswer> generate_batch(Session& session, std::vector<Selection> const& selections,
                                             BatchLimits const& limits, std::span<GenerationRequest const> requests,
                                             std::function<void()> const& before_pass);

}  // namespace perigee
