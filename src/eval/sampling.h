// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/philox.h"
#include "base/schema.h"
#include "ops/sampling.h"

namespace perigee {

struct SamplingOptions {
    std::string prompt = "\n";
    std::string system = {};  ///< with a chat template: instructions before the prompt; empty: none
    int64_t max_tokens = 200;
    double temperature = 0.8;  ///< 0: always the most likely token
    int64_t top_k = 0;         ///< 0: all
    double top_p = 0.95;
    double min_p = 0;
    double repetition_penalty = 1;
    std::string input = {};   ///< file of prompts, one JSON object a line; empty: `prompt`
    std::string output = {};  ///< file of their answers
    int64_t batch = 8;        ///< prompts of the file that are answered at a time
    double cache_gib = 0;     ///< of keys and values for them; 0: as much as they may need
    bool logprobs = false;    ///< also log-probabilities of the answers' tokens
    bool chat = false;        ///< a conversation on the terminal, in place of `prompt`
};
void describe(Schema& schema, SamplingOptions& options);

/// The token chosen from these logits; `index` is the place in the text, so that a text is a function of the seed.
/// Only the first `allowed` ids take part (padding of the vocabulary is never chosen). The repetition penalty falls on
/// the ids in `seen`, each named once. Then follow temperature, top_k, top_p, min_p, in this order and with the meaning
/// of Hugging Face's logits processors: ids as likely as the last of top_k stay, and of equally likely ids the lower
/// ones leave the nucleus first. Throws Category::numeric for logits that are not numbers.
int32_t sample_token(std::span<float const> logits, int64_t allowed, SamplingOptions const& options,
                     Philox const& random, int64_t index, std::span<int32_t const> seen = {});

/// The rule by which draw_token() draws the same token.
DrawRule draw_rule(SamplingOptions const& options, Philox const& random, int64_t index);

/// Draws the tokens of one text, each from its logits.
class Sampler {
  public:
    /// Ids below `allowed` may be drawn.
    Sampler(SamplingOptions const& options, int64_t seed, int64_t allowed);
    /// Ids that the text already has: what the repetition penalty falls on.
    void see(std::span<int32_t const> ids);
    /// The next token, which counts as seen from then on.
    int32_t draw(std::span<float const> logits);
    /// next_rule() and take() split draw() in two, for callers that draw elsewhere, such as on a GPU.
    DrawRule next_rule() const { return draw_rule(options_, random_, drawn_); }
    void take(int32_t id);
    int64_t allowed() const { return allowed_; }
    /// Whether there is a repetition penalty. seen_words(): the seen ids, as bit id % 32 of word id / 32.
    bool penalises() const { return options_.repetition_penalty != 1; }
    std::vector<int32_t> seen_words() const;

  private:
    SamplingOptions options_;
    Philox random_;
    int64_t allowed_;
    int64_t drawn_ = 0;
    std::vector<bool> is_seen_;
    std::vector<int32_t> seen_;  ///< each once
};

struct TokenLogprob {
    int32_t id = 0;
    double logprob = 0;  ///< natural
};
/// Of one token among all, at temperature 1.
double log_probability(std::span<float const> logits, int32_t id);
/// The same of the `count` likeliest among the first `allowed`, the likeliest first, the lower id first where two are
/// as likely.
std::vector<TokenLogprob> likeliest(std::span<float const> logits, int64_t allowed, int64_t count);

}  // namespace perigee
