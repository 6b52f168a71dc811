// Prompts in, answers out: lines of JSON.
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "io/output.h"
#include "io/strict_json.h"
#include "train/batch_generator.h"
#include "train/generate.h"
#include "train/prompt_encoder.h"

namespace perigee {

namespace {

constexpr int64_t kMostInputBytes = int64_t{1} << 30;
constexpr int64_t kMostOfKeys = int64_t{1} << 30;  ///< as in the configuration
constexpr int64_t kMostSeed = std::numeric_limits<int64_t>::max();

using Json = nlohmann::ordered_json;

/// A line of the input.
struct Prompt {
    std::string where;  ///< file and line
    Json id = nullptr;  ///< the caller's, or none
    std::string system, text;
    GenerationRequest request = {};
};

[[noreturn]] void refuse(std::string const& where, char const* key, Json const& value, std::string const& wanted) {
    fail(Category::data, "{}: {} is {}, not {}", where, key, json_excerpt(value), wanted);
}

int64_t whole_number(Json const& value, int64_t least, int64_t most, std::string const& where, char const* key) {
    // Unsigned values above the signed ones become negative.
    auto const number = value.is_number_integer() ? value.get<int64_t>() : least - 1;
    if (number < least || number > most)
        refuse(where, key, value, fmt::format("a whole number from {} to {}", least, most));
    return number;
}

double number(Json const& value, double least, double most, std::string const& where, char const* key) {
    if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= most))
        refuse(where, key, value, fmt::format("a number from {} to {}", least, most));
    return value.get<double>();
}

std::string text(Json const& value, std::string const& where, char const* key) {
    if (!value.is_string()) refuse(where, key, value, "text");
    return value.get<std::string>();
}

Prompt parse_line(std::string const& line, std::string const& where, RunOptions const& options, int64_t index) {
    check_json(line, where, Category::data, kMaxJsonDepth);
    Json const object = Json::parse(line);
    if (!object.is_object() || !object.contains("prompt"))
        fail(Category::data, "{}: an object with a \"prompt\" is needed, not {}", where, json_excerpt(object));
    Prompt prompt{.where = where, .system = options.generate.system, .text = {}};
    SamplingOptions& sampling = prompt.request.sampling = options.generate;
    prompt.request.seed = options.seed + index;
    for (auto const& [key, value] : object.items()) {
        if (key == "prompt")
            prompt.text = text(value, where, "prompt");
        else if (key == "system")
            prompt.system = text(value, where, "system");
        else if (key == "id")
            prompt.id = value;
        else if (key == "max_tokens")
            sampling.max_tokens = whole_number(value, 1, kMostOfKeys, where, "max_tokens");
        else if (key == "seed")
            prompt.request.seed = whole_number(value, 0, kMostSeed, where, "seed");
        else if (key == "temperature")
            sampling.temperature = number(value, 0, 1e6, where, "temperature");
        else if (key == "top_k")
            sampling.top_k = whole_number(value, 0, kMostOfKeys, where, "top_k");
        else if (key == "top_p")
            sampling.top_p = number(value, 1e-9, 1, where, "top_p");
        else if (key == "min_p")
            sampling.min_p = number(value, 0, 1, where, "min_p");
        else if (key == "repetition_penalty")
            sampling.repetition_penalty = number(value, 1e-6, 1e6, where, "repetition_penalty");
        else
            fail(Category::data,
                 "{}: unknown key {}; known are prompt, system, id, max_tokens, seed, temperature, top_k, top_p, "
                 "min_p, repetition_penalty",
                 where, json_excerpt(key));
    }
    return prompt;
}

std::vector<Prompt> read_prompts(Session& session) {
    RunOptions const& options = session.options();
    std::istringstream lines(session.files().read_text(options.generate.input, kMostInputBytes));
    std::vector<Prompt> prompts;
    std::string line;
    for (int64_t number = 1; std::getline(lines, line); ++number) {
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        prompts.push_back(
            parse_line(line, fmt::format("{}:{}", options.generate.input, number), options, std::ssize(prompts)));
    }
    return prompts;
}

/// Before the answers are computed.
void check_output(FileSystem& files, Path const& input, Path const& output) {
    refuse_replacing({input}, output, "generate.output");
    try {
        check_writable(files, output);
    } catch (IoError const& error) {
        fail(error.category(), "generate.output ({}) must be a file that can be written: {}", output.string(),
             error.what());
    }
}

/// The prompt as the model reads it, with room for an answer.
std::vector<int32_t> encoded(Prompt const& prompt, PromptEncoder const& encoder, int64_t most) {
    if (!encoder.chats() && !prompt.system.empty())
        fail(Category::data, "{}: a system message needs a chat template, and there is none (chat.template)",
             prompt.where);
    std::vector<int32_t> ids;
    try {
        ids = encoder.chats() ? encoder.encode(prompt.system, prompt.text) : encoder.encode(prompt.text);
    } catch (Error const& error) {  // of the template
        fail(error.category(), "{}: {}", prompt.where, error.what());
    }
    if (ids.empty())
        fail(Category::data, "{}: prompt is empty: at least one token is needed to go on from", prompt.where);
    std::string const problem = room_problem(std::ssize(ids), most);
    if (!problem.empty()) fail(Category::data, "{}: prompt {}", prompt.where, problem);
    return ids;
}

Json answer_line(Prompt const& prompt, GenerationAnswer const& answer, Tokenizer const& tokenizer, bool logprobs) {
    Json line;
    if (!prompt.id.is_null()) line["id"] = prompt.id;
    line["text"] = tokenizer.decode(answer.ids);
    line["finish_reason"] = to_string(answer.finish);
    line["seed"] = prompt.request.seed;
    line["prompt_tokens"] = prompt.request.ids.size();
    line["tokens"] = answer.ids;
    if (logprobs) line["logprobs"] = answer.logprobs;
    return line;
}

}  // namespace

void generate_file(Session& session, RunState const& state, std::function<void()> const& before_pass) {
    RunOptions const& options = session.options();
    bool const writes = session.mesh().world().rank() == 0;
    if (writes) check_output(session.files(), options.generate.input, options.generate.output);
    PromptEncoder const encoder(session, state);
    std::vector<Prompt> prompts = read_prompts(session);
    std::vector<GenerationRequest> requests;
    for (Prompt& prompt : prompts) {
        prompt.request.ids = encoded(prompt, encoder, options.model.max_position_embeddings);
        prompt.request.stop = encoder.stop();
        prompt.request.logprobs = options.generate.logprobs;
        requests.push_back(prompt.request);
    }
    constexpr double kGiB = 1 << 30;
    BatchLimits const limits{.texts = options.generate.batch,
                             .cache_bytes = static_cast<int64_t>(options.generate.cache_gib * kGiB),
                             .text_tokens = options.model.max_position_embeddings,
                             .vocabulary = encoder.tokenizer().vocab_size()};
    auto const answers = generate_batch(session, session.selections(state.step), limits, requests, before_pass);
    if (!writes) return;
    std::string text;
    for (size_t i = 0; i < answers.size(); ++i)
        text += answer_line(prompts[i], answers[i], encoder.tokenizer(), options.generate.logprobs)
                    .dump(-1, ' ', false, Json::error_handler_t::replace) +
                "\n";
    write_output(session.files(), options.generate.output, text);
}

}  // namespace perigee
