// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/philox.h"
#include "base/schema.h"

namespace perigee {

struct SamplingOptions {
    std::string prompt = "\n";
    std::string system = {};  ///< with a chat template: instructions before the prompt; empty: none
    int64_t max_tokens = 200;
    double temperature = 0.8;  ///< 0: always the most likely token
    double top_p = 0.95;
    std::string input = {};   ///< file of prompts, one JSON object a line; empty: `prompt`
    std::string output = {};  ///< file of their answers
    int64_t batch = 8;        ///< prompts of the file that are answered at a time
    double cache_gib = 0;     ///< of keys and values for them; 0: as much as they may need
    bool logprobs = false;    ///< also log-probabilities of the answers' tokens
};
void describe(Schema& schema, SamplingOptions& options);

/// The token chosen from these logits; `index` is the place in the text, so that a text is a function of the seed.
/// Only the first `allowed` ids take part (padding of the vocabulary is never chosen).
int32_t sample_token(std::span<float const> logits, int64_t allowed, SamplingOptions const& options,
                     Philox const& random, int64_t index);

}  // namespace perigee
