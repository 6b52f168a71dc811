// Answers to many prompts at once: texts share a cache and each decoding step, and a prompt begins as soon as there is
// room for it (continuous batching).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "eval/sampling.h"
#include "train/seen_ids.h"
#include "train/session.h"

namespace perigee {

struct GenerationRequest {
    std::vector<int32_t> ids;  ///< of the prompt, at least one
    SamplingOptions sampling;  ///< max_tokens, temperature, top_k, top_p, min_p, repetition_penalty
    int64_t seed = 0;          ///< of the draws: the text is a function of it and the prompt, not of other requests
    std::vector<int32_t> stop = {};  ///< ids that end the answer, one after the other
    bool logprobs = false;
    int64_t top = 0;  ///< with logprobs: also of so many of the likeliest tokens
};

enum class Finish { stop, length };
char const* to_string(Finish finish);

struct GenerationAnswer {
    std::vector<int32_t> ids;  ///< without those that end it
    std::vector<double>
        logprobs;  ///< on request: natural, of each id among all of the model's, before penalty and temperature
    Finish finish = Finish::length;
};

struct BatchLimits {
    int64_t texts = 8;             ///< at a time
    int64_t cache_bytes = 0;       ///< 0: room for all of them at their longest
    int64_t text_tokens = 0;       ///< prompt and answer together have so many at most
    int64_t vocabulary = 0;        ///< ids that may be drawn
    int64_t chunk_tokens = 8'192;  ///< of prompts, read between two steps of the answers
};

/// A token of one of the texts.
struct GeneratedToken {
    int64_t text = 0;  ///< the number that begin() gave
    int32_t id = 0;
    double logprob = 0;
    std::vector<TokenLogprob> top = {};
    std::optional<Finish> finish = {};  ///< the answer ends with it
};

/// Texts that come and go while it runs. The same calls on every rank; step() is collective.
class BatchGenerator {
  public:
    /// Starts with an empty cache. Throws Category::config with parallel.context > 1, a key convolution, or heads that
    /// the GPU's kernels do not take.
    BatchGenerator(Session& session, std::vector<Selection> selections, BatchLimits const& limits);

    /// Tokens that prompt and answer of a text may have at most.
    int64_t most_tokens() const;
    /// Those of this request, as far as its text may grow.
    int64_t longest(GenerationRequest const& request) const;
    bool idle() const { return running() == 0; }
    int64_t running() const;
    KvCache const& cache() const { return cache_; }

    /// Takes pages for a prompt shorter than most_tokens() and its answer, and returns the number of its text; nothing
    /// where pages are too few or there are texts enough.
    std::optional<int64_t> begin(GenerationRequest request);
    /// Reads on in the prompts that have begun, and adds a token to every text whose prompt is read. Pages of texts
    /// that end are free again. `before_pass` is called before each pass of the model.
    std::vector<GeneratedToken> step(std::function<void()> const& before_pass);
    /// The text ends at once.
    void drop(int64_t text);

  private:
    struct Running {
        Running(GenerationRequest asked, int64_t vocabulary);
        GenerationRequest request;
        Sampler sampler;
        int64_t read = 0;               ///< tokens of the prompt
        std::vector<int32_t> ids = {};  ///< of the answer; the last one is not in the cache yet
        bool reads() const { return read < std::ssize(request.ids); }
    };

    KvCache make_cache() const;
    void read_prompts(std::function<void()> const& before_pass, std::vector<GeneratedToken>& tokens);
    void decode(std::vector<bool> const& ready, std::vector<GeneratedToken>& tokens);
    void draw_on_host(std::vector<int32_t> ids, std::vector<bool> const& ready, std::vector<GeneratedToken>& tokens);
    void draw_on_device(std::vector<int32_t> ids, std::vector<bool> const& ready, std::vector<GeneratedToken>& tokens);
    std::vector<int32_t> agreed(std::vector<int32_t> drawn) const;
    GeneratedToken take(int64_t text, int32_t id, std::span<float const> logits);

    Session& session_;
    std::vector<Selection> const selections_;
    BatchLimits const limits_;
    std::vector<std::optional<Running>> running_;  ///< by their number in the cache
    SeenIds seen_;
    KvCache cache_;
    int64_t const pages_;
};

/// Answers in the order of the requests; none to prompts that leave no room for one. `before_pass` is called before
/// each pass of the model. Throws Category::config, before any pass, for a prompt without room in the cache, and on a
/// mesh or GPU without one. Collective.
std::vector<GenerationAnswer> generate_batch(Session& session, std::vector<Selection> const& selections,
                                             BatchLimits const& limits, std::span<GenerationRequest const> requests,
                                             std::function<void()> const& before_pass);

}  // namespace perigee
