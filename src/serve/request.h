// What a client asks for, in the shape of OpenAI's API: from JSON to prompts of tokens and options.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/batch_generator.h"
#include "train/prompt_encoder.h"

namespace perigee::serve {

/// What is wrong with a request, as its answer says it.
struct Refusal {
    int status = 400;
    std::string message;
    std::string code = {};  ///< OpenAI's word for it, or none
};
/// {"error": {"message", "type", "param", "code"}}.
std::string error_json(Refusal const& refusal);

enum class Endpoint { completions, chat };

/// A prompt, and what an echo of it reads.
struct ServedPrompt {
    std::vector<int32_t> ids;
    std::string text;
    size_t names_from = SIZE_MAX;  ///< place from which on the text has the names of special tokens
};

struct ServedRequest {
    Endpoint endpoint = Endpoint::completions;
    std::string model = {};  ///< as the client calls it
    std::vector<ServedPrompt> prompts = {};
    int64_t choices = 1;  ///< answers to each prompt
    SamplingOptions sampling;
    int64_t max_tokens = 0;              ///< also 0
    int64_t seed = 0;                    ///< of the first choice of a prompt; the others' follow
    bool seeded = false;                 ///< by the client: equal prompts have equal seeds, else all texts differ
    std::vector<int32_t> end = {};       ///< ids that end an answer
    std::vector<std::string> stop = {};  ///< texts that end an answer and are no part of it
    bool echo = false, stream = false, stream_usage = false;
    std::optional<int64_t> logprobs = {};  ///< and how many of the likeliest tokens come with them

    /// Log-probabilities of the prompt are wanted.
    bool scores_prompt() const { return echo && logprobs; }
};

/// Reads requests for one model. Any thread.
class RequestReader {
  public:
    struct Limits {
        int64_t text_tokens = 0;  ///< of prompt and answer
        int64_t texts = 0;        ///< prompts times choices of one request
    };
    RequestReader(PromptEncoder const& encoder, SamplingOptions const& defaults, int64_t seed, Limits const& limits);

    /// Throws Refusal.
    ServedRequest read(Endpoint endpoint, std::string_view body);

  private:
    std::vector<int32_t> encode_chat(std::string const& line);
    /// The first of so many that no other request has.
    int64_t next_seeds(int64_t count);

    PromptEncoder const& encoder_;
    SamplingOptions const defaults_;
    Limits const limits_;
    std::mutex mutex_;  ///< of the template, which serves one thread at a time, and the seed
    uint64_t seed_;
};

}  // namespace perigee::serve
