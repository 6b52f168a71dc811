#include "serve/request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/strict_json.h"

namespace perigee::serve {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostTop = 20, kMostStops = 16;
constexpr size_t kLongestStop = 1000;  // bytes

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
    throw Refusal{.message = fmt::format(format, std::forward<Args>(args)...)};
}

[[noreturn]] void refuse_value(char const* key, Json const& value, std::string const& wanted) {
    refuse("{} is {}, not {}", key, json_excerpt(value), wanted);
}

int64_t whole_number(char const* key, Json const& value, int64_t least, int64_t most) {
    bool const whole = value.is_number_integer() &&
                       !(value.is_number_unsigned() &&
                         value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
    if (!whole || value.get<int64_t>() < least || value.get<int64_t>() > most)
        refuse_value(key, value, fmt::format("a whole number from {} to {}", least, most));
    return value.get<int64_t>();
}

double number(char const* key, Json const& value, double least, double most) {
    if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= most))
        refuse_value(key, value, fmt::format("a number from {} to {}", least, most));
    return value.get<double>();
}

bool truth(char const* key, Json const& value) {
    if (!value.is_boolean()) refuse_value(key, value, "true or false");
    return value.get<bool>();
}

std::vector<int32_t> ids_of(Json const& list, int64_t vocabulary) {
    std::vector<int32_t> ids;
    for (Json const& id : list)
        ids.push_back(static_cast<int32_t>(whole_number("a token of prompt", id, 0, vocabulary - 1)));
    return ids;
}

std::vector<std::string> stops_of(Json const& value) {
    std::vector<std::string> stops;
    for (Json const& stop : value.is_array() ? value : Json::array({value})) {
        if (!stop.is_string() || stop.get_ref<std::string const&>().size() > kLongestStop)
            refuse_value("stop", stop, fmt::format("text of at most {} bytes", kLongestStop));
        if (!stop.get_ref<std::string const&>().empty()) stops.push_back(stop);
    }
    if (std::ssize(stops) > kMostStops) refuse("stop has {} texts, more than {}", stops.size(), kMostStops);
    return stops;
}

/// Keys that other servers know and that change nothing here, with the values that they may have; none: any.
std::map<std::string, std::vector<Json>> const& without_effect() {
    static std::map<std::string, std::vector<Json>> const keys = {{"best_of", {1}},
                                                                  {"echo", {false}},
                                                                  {"frequency_penalty", {0}},
                                                                  {"function_call", {"none", "auto"}},
                                                                  {"functions", {Json::array()}},
                                                                  {"ignore_eos", {false}},
                                                                  {"include_stop_str_in_output", {false}},
                                                                  {"length_penalty", {1}},
                                                                  {"logit_bias", {Json::object()}},
                                                                  {"metadata", {}},
                                                                  {"min_tokens", {0}},
                                                                  {"modalities", {Json::array({"text"})}},
                                                                  {"parallel_tool_calls", {}},
                                                                  {"presence_penalty", {0}},
                                                                  {"prompt_cache_key", {}},
                                                                  {"response_format", {Json{{"type", "text"}}}},
                                                                  {"safety_identifier", {}},
                                                                  {"service_tier", {}},
                                                                  {"skip_special_tokens", {true}},
                                                                  {"stop_token_ids", {Json::array()}},
                                                                  {"store", {false}},
                                                                  {"suffix", {""}},
                                                                  {"tool_choice", {"none", "auto"}},
                                                                  {"tools", {Json::array()}},
                                                                  {"use_beam_search", {false}},
                                                                  {"user", {}}};
    return keys;
}

bool asks_for_usage(Json const& stream_options) {
    Json const wanted = stream_options.value("include_usage", Json(nullptr));
    return !wanted.is_null() && truth("stream_options.include_usage", wanted);
}

/// True where the key is one that both endpoints have.
bool read_common(std::string const& key, Json const& value, ServedRequest& request) {
    constexpr int64_t kMost = int64_t{1} << 30;
    SamplingOptions& sampling = request.sampling;
    if (key == "model")
        request.model = value.is_string() ? value.get<std::string>() : "";
    else if (key == "temperature")
        sampling.temperature = number("temperature", value, 0, 1e6);
    else if (key == "top_p")
        sampling.top_p = number("top_p", value, 1e-9, 1);
    else if (key == "top_k")
        sampling.top_k = std::max<int64_t>(whole_number("top_k", value, -1, kMost), 0);
    else if (key == "min_p")
        sampling.min_p = number("min_p", value, 0, 1);
    else if (key == "repetition_penalty")
        sampling.repetition_penalty = number("repetition_penalty", value, 1e-6, 1e6);
    else if (key == "seed")
        request.seed =
            whole_number("seed", value, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
    else if (key == "n")
        request.choices = whole_number("n", value, 1, 128);
    else if (key == "max_tokens" || (key == "max_completion_tokens" && request.endpoint == Endpoint::chat))
        request.max_tokens = whole_number(key.c_str(), value, 0, kMost);
    else if (key == "stop")
        request.stop = stops_of(value);
    else if (key == "stream")
        request.stream = truth("stream", value);
    else if (key == "stream_options" && value.is_object())
        request.stream_usage = asks_for_usage(value);
    else
        return false;
    return true;
}

bool is_harmless(std::string const& key, Json const& value) {
    auto const found = without_effect().find(key);
    return found != without_effect().end() && (found->second.empty() || std::ranges::count(found->second, value) > 0);
}

void read_key(std::string const& key, Json const& value, ServedRequest& request) {
    if (value.is_null() || read_common(key, value, request)) return;
    bool const chat = request.endpoint == Endpoint::chat;
    if (key == (chat ? "messages" : "prompt") || (chat && key == "tools")) return;  // read apart
    if (!chat && key == "logprobs")
        request.logprobs = whole_number("logprobs", value, 0, kMostTop);
    else if (!chat && key == "echo")
        request.echo = truth("echo", value);
    else if (chat && key == "logprobs")
        request.logprobs = truth("logprobs", value) ? std::optional(request.logprobs.value_or(0)) : std::nullopt;
    else if (chat && key == "top_logprobs")
        request.logprobs = whole_number("top_logprobs", value, 0, kMostTop);
    else if (!is_harmless(key, value))
        refuse("{} with the value {} is not supported", json_excerpt(key), json_excerpt(value));
}

std::vector<ServedPrompt> prompts_of(Json const& prompt, PromptEncoder const& encoder) {
    Tokenizer const& tokenizer = encoder.tokenizer();
    auto const of_text = [&](Json const& text) {
        std::string const& read = text.get_ref<std::string const&>();
        return ServedPrompt{encoder.encode(read), read, tokenizer.prefix().size()};
    };
    auto const of_ids = [&](Json const& list) {
        ServedPrompt read{.ids = ids_of(list, tokenizer.vocab_size()), .text = {}};
        StreamDecoder stream(tokenizer);
        for (int32_t const id : read.ids) read.text += stream.push(id);
        read.text += stream.finish();
        return read;
    };
    if (prompt.is_string()) return {of_text(prompt)};
    if (!prompt.is_array()) refuse_value("prompt", prompt, "text, texts, tokens, or lists of tokens");
    if (prompt.empty() || prompt[0].is_number()) return {of_ids(prompt)};
    std::vector<ServedPrompt> prompts;
    for (Json const& one : prompt) {
        if (!one.is_string() && !one.is_array()) refuse_value("an element of prompt", one, "text or a list of tokens");
        prompts.push_back(one.is_string() ? of_text(one) : of_ids(one));
    }
    return prompts;
}

/// Rules between the keys of a chat.
void check_chat(Json const& object) {
    auto const given = [&](char const* key) { return object.contains(key) ? object[key] : Json(nullptr); };
    bool const logprobs = given("logprobs") == true;
    if (Json const top = given("top_logprobs"); !logprobs && !top.is_null() && top != 0)
        refuse("top_logprobs is {}, but logprobs is not true", json_excerpt(top));
    if (given("tool_choice") == "none" && !given("tools").empty())
        refuse("tool_choice is \"none\", but there are tools: the model reads them, so leave them out");
}

/// Whether a number of the text is too large.
bool overflows(std::string_view text) {
    try {
        [[maybe_unused]] Json const read = Json::parse(text);
    } catch (Json::out_of_range const&) {
        return true;
    } catch (Json::exception const&) {
    }
    return false;
}

Json parsed(std::string_view body) {
    try {
        check_json(body, "the body", Category::data, kMaxJsonDepth);
        Json object = Json::parse(body);
        if (!object.is_object()) refuse("the body is no JSON object");
        return object;
    } catch (Error const& error) {
        if (overflows(body)) refuse("the body has a number that is out of range, beyond 1.8e308");
        refuse("{}", error.what());
    } catch (Json::exception const& error) {
        refuse("the body is no JSON: {}", error.what());
    }
}

}  // namespace

std::string error_json(Refusal const& refusal) {
    char const* const type = refusal.status >= 500 ? "server_error" : "invalid_request_error";
    Json const code = refusal.code.empty() ? Json(nullptr) : Json(refusal.code);
    Json const error = {{"message", refusal.message}, {"type", type}, {"param", nullptr}, {"code", code}};
    return Json{{"error", error}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

RequestReader::RequestReader(PromptEncoder const& encoder, SamplingOptions const& defaults, int64_t seed,
                             Limits const& limits)
    : encoder_(encoder), defaults_(defaults), limits_(limits), seed_(static_cast<uint64_t>(seed)) {}

int64_t RequestReader::next_seeds(int64_t count) {
    std::scoped_lock const lock(mutex_);
    return static_cast<int64_t>(std::exchange(seed_, seed_ + static_cast<uint64_t>(count)));
}

std::vector<int32_t> RequestReader::encode_chat(std::string const& line) {
    if (!encoder_.chats()) refuse("this model has no chat template; /v1/completions continues texts");
    ConversationLine const conversation = parse_conversation(line, RecordFormat::messages);
    if (!conversation.problem.empty()) refuse("{}", conversation.problem);
    std::scoped_lock const lock(mutex_);
    try {
        return encoder_.encode(conversation);
    } catch (Error const& error) {
        if (error.category() != Category::data) throw;
        refuse("{}", error.what());
    }
}

ServedRequest RequestReader::read(Endpoint endpoint, std::string_view body) {
    Json const object = parsed(body);
    ServedRequest request{.endpoint = endpoint, .sampling = defaults_, .max_tokens = defaults_.max_tokens};
    for (auto const& [key, value] : object.items()) read_key(key, value, request);
    if (endpoint == Endpoint::chat) check_chat(object);
    if (endpoint == Endpoint::chat && object.value("logprobs", Json(false)) != true) request.logprobs = {};
    char const* const key = endpoint == Endpoint::chat ? "messages" : "prompt";
    if (!object.contains(key)) refuse("{} is missing", key);
    if (endpoint == Endpoint::chat) {
        Json line = {{"messages", object["messages"]}};
        if (object.contains("tools")) line["tools"] = object["tools"];
        request.prompts = {{.ids = encode_chat(line.dump()), .text = {}}};
        request.end = encoder_.stop();
    } else {
        request.prompts = prompts_of(object["prompt"], encoder_);
        request.end = {encoder_.tokenizer().end_of_document()};
    }
    if (std::ssize(request.prompts) > limits_.texts / request.choices)
        refuse("{} prompts times {} choices are more than {}", request.prompts.size(), request.choices, limits_.texts);
    request.seeded = object.contains("seed") && !object["seed"].is_null();
    if (!request.seeded) request.seed = next_seeds(std::ssize(request.prompts) * request.choices);
    int64_t const room = request.max_tokens > 0 ? limits_.text_tokens - 1 : limits_.text_tokens;
    for (ServedPrompt const& prompt : request.prompts) {
        if (prompt.ids.empty()) refuse("a prompt without tokens");
        if (std::ssize(prompt.ids) > room)
            throw Refusal{.message = fmt::format("a prompt of {} tokens, where prompt and answer may have {}",
                                                 prompt.ids.size(), limits_.text_tokens),
                          .code = "context_length_exceeded"};
    }
    return request;
}

}  // namespace perigee::serve
