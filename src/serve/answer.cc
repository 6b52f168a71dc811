#include "serve/answer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/tokenizer/unicode.h"

namespace perigee::serve {

namespace {

using Json = nlohmann::ordered_json;

std::string dumped(Json const& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }
std::string event_of(std::string const& data) { return "data: " + data + "\n\n"; }

/// Bytes that are no text by themselves as OpenAI writes them: "bytes:\xe2\x82".
std::string named(std::string const& piece) {
    if (utf8::is_whole(piece)) return piece;
    std::string name = "bytes:";
    for (char const c : piece) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    return name;
}

Json completion_logprobs(std::vector<ReportedToken> const& tokens) {
    Json result = {{"tokens", Json::array()},
                   {"token_logprobs", Json::array()},
                   {"top_logprobs", Json::array()},
                   {"text_offset", Json::array()}};
    for (ReportedToken const& token : tokens) {
        result["tokens"].push_back(named(token.text));
        result["token_logprobs"].push_back(token.logprob ? Json(*token.logprob) : Json(nullptr));
        Json top = token.logprob ? Json::object() : Json(nullptr);
        for (auto const& [text, logprob] : token.top)
            if (!top.contains(named(text))) top[named(text)] = logprob;
        // The API names the token itself, likely or not.
        if (token.logprob && !top.contains(named(token.text))) top[named(token.text)] = *token.logprob;
        result["top_logprobs"].push_back(top);
        result["text_offset"].push_back(token.offset);
    }
    return result;
}

Json chat_token(std::string const& piece, double logprob) {
    Json bytes = Json::array();
    for (char const c : piece) bytes.push_back(static_cast<unsigned char>(c));
    return {{"token", named(piece)}, {"logprob", logprob}, {"bytes", bytes}};
}

Json chat_logprobs(std::vector<ReportedToken> const& tokens) {
    Json content = Json::array();
    for (ReportedToken const& token : tokens) {
        Json one = chat_token(token.text, token.logprob.value_or(0));
        one["top_logprobs"] = Json::array();
        for (auto const& [text, logprob] : token.top) one["top_logprobs"].push_back(chat_token(text, logprob));
        content.push_back(one);
    }
    return {{"content", content}};
}

}  // namespace

Answer::Answer(ServedRequest request, Tokenizer const& tokenizer, std::string const& id, int64_t created)
    : request_(std::move(request)),
      id_((request_.endpoint == Endpoint::chat ? "chatcmpl-" : "cmpl-") + id),
      created_(created) {
    for (ServedPrompt const& prompt : request_.prompts)
        for (int64_t i = 0; i < request_.choices; ++i) choices_.emplace_back(request_, prompt, tokenizer);
    parts_.resize(choices_.size());
}

std::vector<Task> Answer::tasks(int64_t most_tokens) const {
    std::vector<Task> tasks;
    for (ServedPrompt const& prompt : request_.prompts) {
        for (int64_t i = 0; i < request_.choices; ++i) {
            auto const offset = static_cast<uint64_t>(request_.seeded ? i : std::ssize(tasks));
            GenerationRequest generation{.ids = prompt.ids,
                                         .sampling = request_.sampling,
                                         .seed = static_cast<int64_t>(static_cast<uint64_t>(request_.seed) + offset),
                                         .stop = request_.end,
                                         .logprobs = request_.logprobs.has_value(),
                                         .top = request_.logprobs.value_or(0)};
            generation.sampling.max_tokens = std::min(request_.max_tokens, most_tokens - std::ssize(prompt.ids));
            bool const scores = request_.scores_prompt();
            bool const one_greedy = request_.max_tokens == 1 && request_.sampling.temperature == 0 &&
                                    request_.sampling.repetition_penalty == 1;
            bool const generates = request_.max_tokens > 0 && !(scores && one_greedy);
            tasks.push_back({.generation = std::move(generation), .scores = scores, .generates = generates});
        }
    }
    return tasks;
}

std::string Answer::add(Event const& event) {
    Choice& choice = choices_[event.task];
    if (auto const* failed = std::get_if<Failed>(&event.what)) {
        if (!choice.finish()) failure_ = failed->message;
        return {};
    }
    if (auto const* scores = std::get_if<PromptScores>(&event.what))
        choice.add(*scores);
    else
        choice.add(std::get<GeneratedToken>(event.what));
    return events_of(event.task);
}

std::string Answer::end_now() {
    if (std::ranges::any_of(choices_, &Choice::lacks_scores)) {
        failure_ = "the time of this request was over before all prompts were read";
        return {};
    }
    std::string events;
    for (size_t i = 0; i < choices_.size(); ++i) {
        choices_[i].end(Finish::length);
        events += events_of(i);
    }
    return events;
}

bool Answer::complete() const {
    return !failure_.empty() || std::ranges::all_of(choices_, [](Choice const& c) { return c.finish().has_value(); });
}

Json Answer::frame(bool chunk) const {
    bool const chat = request_.endpoint == Endpoint::chat;
    return {{"id", id_},
            {"object", chat ? (chunk ? "chat.completion.chunk" : "chat.completion") : "text_completion"},
            {"created", created_},
            {"model", request_.model},
            {"choices", Json::array()}};
}

Json Answer::usage() const {
    int64_t prompt = 0, completion = 0;
    for (ServedPrompt const& one : request_.prompts) prompt += std::ssize(one.ids);
    for (Choice const& choice : choices_) completion += choice.tokens();
    return {{"prompt_tokens", prompt}, {"completion_tokens", completion}, {"total_tokens", prompt + completion}};
}

/// What has come of a choice, as an event; kept for the end where the answer is not streamed.
std::string Answer::events_of(size_t index) {
    Choice& choice = choices_[index];
    Part& part = parts_[index];
    std::string const text = choice.take_text();
    auto const tokens = choice.take_tokens();
    if (!request_.stream) {
        part.text += text;
        part.tokens.insert(part.tokens.end(), tokens.begin(), tokens.end());
        return {};
    }
    bool const ends = choice.finish() && !std::exchange(part.ended, choice.finish().has_value());
    if (text.empty() && tokens.empty() && !ends) return {};
    Json const finish = ends ? Json(to_string(*choice.finish())) : Json(nullptr);
    Json event = frame(/*chunk=*/true);
    if (request_.endpoint == Endpoint::chat) {
        Json delta = Json::object();
        if (!std::exchange(part.begun, true)) delta["role"] = kAnswers;
        delta["content"] = text;
        event["choices"].push_back({{"index", index},
                                    {"delta", delta},
                                    {"logprobs", request_.logprobs ? chat_logprobs(tokens) : Json(nullptr)},
                                    {"finish_reason", finish}});
    } else {
        event["choices"].push_back({{"index", index},
                                    {"text", text},
                                    {"logprobs", request_.logprobs ? completion_logprobs(tokens) : Json(nullptr)},
                                    {"finish_reason", finish}});
    }
    return event_of(dumped(event));
}

std::string Answer::finish() {
    if (!failure_.empty()) {
        std::string const error = error_json({.status = 503, .message = failure_});
        return request_.stream ? event_of(error) : error;
    }
    std::string events;
    for (size_t i = 0; i < choices_.size(); ++i) events += events_of(i);
    if (request_.stream) {
        Json last = frame(/*chunk=*/true);
        last["usage"] = usage();
        return events + (request_.stream_usage ? event_of(dumped(last)) : "") + event_of("[DONE]");
    }
    Json all = frame(/*chunk=*/false);
    for (size_t i = 0; i < choices_.size(); ++i) {
        Part const& part = parts_[i];
        Json choice = {{"index", i}};
        if (request_.endpoint == Endpoint::chat) {
            choice["message"] = {{"role", kAnswers}, {"content", part.text}};
            choice["logprobs"] = request_.logprobs ? chat_logprobs(part.tokens) : Json(nullptr);
        } else {
            choice["text"] = part.text;
            choice["logprobs"] = request_.logprobs ? completion_logprobs(part.tokens) : Json(nullptr);
        }
        choice["finish_reason"] = to_string(*choices_[i].finish());
        all["choices"].push_back(choice);
    }
    all["usage"] = usage();
    return dumped(all);
}

}  // namespace perigee::serve
