#include "data/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "data/chat_template.h"
#include "io/strict_json.h"

namespace perigee {

namespace {

/// Keeps the order of keys, which a template writes.
using Json = nlohmann::ordered_json;

constexpr size_t kMostKeys = 10000;  ///< of one object; a Json looks them up one by one

/// What keeps JSON from being read at all.
class Checker : public nlohmann::json_sax<nlohmann::json> {
  public:
    /// `exact`: the members of a record whose whole numbers must be kept to the digit; none for all.
    explicit Checker(std::span<char const* const> exact) : exact_(exact) {}

    std::string problem;

    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(number_integer_t) override { return true; }
    bool number_unsigned(number_unsigned_t) override { return true; }
    bool number_float(number_float_t, string_t const& text) override {
        bool const whole = text.find_first_of(".eE") == text.npos;
        bool const counts = exact_.empty() || std::ranges::find(exact_, member_) != exact_.end();
        if (whole && counts)
            problem = fmt::format("{:.40} is a whole number of more than 64 bits: write it as text", text);
        return problem.empty();
    }
    bool string(string_t&) override { return true; }
    bool binary(binary_t&) override { return true; }
    bool start_object(size_t) override { return enter(); }
    bool start_array(size_t) override { return enter(); }
    bool end_object() override { return keys_.pop_back(), true; }
    bool end_array() override { return keys_.pop_back(), true; }
    bool key(string_t& name) override {
        if (keys_.size() == 1) member_ = name;
        if (!keys_.back().insert(name).second) problem = fmt::format("two \"{:.40}\" in one object", name);
        if (keys_.back().size() > kMostKeys) problem = fmt::format("an object of more than {} keys", kMostKeys);
        return problem.empty();
    }
    bool parse_error(size_t position, std::string const&, nlohmann::json::exception const& error) override {
        return problem = json_problem(position, error.what()), false;
    }

  private:
    bool enter() {
        if (static_cast<int>(keys_.size()) == kMaxJsonDepth)
            problem = fmt::format("nested more than {} deep", kMaxJsonDepth);
        keys_.emplace_back();
        return problem.empty();
    }
    std::span<char const* const> exact_;
    std::string member_;                       ///< of the record, in which the parser is
    std::vector<std::set<std::string>> keys_;  ///< of the objects the parser is in; empty for lists
};

/// What a template may write of a record.
constexpr std::array kSaid{"messages", "conversations", "prompt", "completion", "tools"};

/// A reason not to read a line.
struct Problem {
    std::string text;
};
template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
    throw Problem{fmt::format(format, std::forward<Args>(args)...)};
}

char const* kind(Json const& value) {
    if (value.is_null()) return "null";
    if (value.is_boolean()) return "a boolean";
    if (value.is_number()) return "a number";
    if (value.is_string()) return "a text";
    return value.is_array() ? "an array" : "an object";
}

Json const& value_of(Json const& object, char const* key) {
    static Json const kNone;
    auto const found = object.find(key);
    return found == object.end() ? kNone : *found;
}

std::string const& text_of(Json const& object, char const* key) {
    if (!object.contains(key)) refuse("no \"{}\"", key);
    Json const& value = object.at(key);
    if (!value.is_string()) refuse("\"{}\" is {}, where text is expected", key, kind(value));
    return value.get_ref<std::string const&>();
}

Json const& list_of(Json const& object, char const* key) {
    Json const& value = object.at(key);
    if (!value.is_array()) refuse("\"{}\" is {}, where a list is expected", key, kind(value));
    return value;
}

void parse(std::string_view text, Checker& checker) {
    if (auto const problem = nul_problem(text))
        checker.problem = *problem;
    else
        nlohmann::json::sax_parse(text, &checker);
}

/// JSON that a record holds as text.
Json json_in_text(std::string const& text, char const* name) {
    Checker checker({});
    parse(text, checker);
    if (!checker.problem.empty()) refuse("\"{}\": {}", name, checker.problem);
    return Json::parse(text);
}

/// Text, or a list of parts that are text.
std::string content_of(Json const& content) {
    if (content.is_string()) return content;
    std::string text;
    for (size_t i = 0; i < content.size(); ++i) {
        Json const& part = content[i];
        if (part.is_string()) {
            text += part.get_ref<std::string const&>();
            continue;
        }
        Json const& type = value_of(part, "type");
        if (!part.is_object() || (type != "text" && !type.is_null()))
            refuse("part {} of \"content\" is {}, where text is expected", i + 1,
                   type.is_string() ? json_excerpt(type) : kind(part));
        if (!value_of(part, "text").is_string()) refuse("part {} of \"content\" has no \"text\"", i + 1);
        text += part.at("text").get_ref<std::string const&>();
    }
    return text;
}

/// Keys that set a message's loss. Templates do not see them.
constexpr std::array kOfLoss{"weight", "train", "training"};
constexpr std::array kOnlyJinja{"tool_calls", "function_call", "reasoning_content", "reasoning", "thinking"};

bool is_empty(Json const& value) {
    return value.is_null() || (value.is_string() && value.get_ref<std::string const&>().empty()) ||
           (value.is_structured() && value.empty());
}

/// Collects messages, as texts and as JSON.
class Collector {
  public:
    ConversationLine line;

    void add(Json message) {
        ++count_;
        try {
            line.messages.push_back(checked(message));
        } catch (Problem const& problem) {
            refuse("message {}: {}", count_, problem.text);
        }
        for (char const* const key : kOfLoss) message.erase(key);
        list_.push_back(std::move(message));
    }
    void add(char const* role, std::string const& content, double weight = 1) {
        add(Json{{"role", role}, {"content", content}, {"weight", weight}});
    }
    void add_all(Json const& messages) {
        for (Json const& message : messages) add(message);
    }
    void tools(Json const& tools) {
        if (is_empty(tools)) return;
        Json const list = tools.is_string() ? json_in_text(tools.get_ref<std::string const&>(), "tools") : tools;
        if (!list.is_array()) refuse("\"tools\" is {}, where a list is expected", kind(list));
        if (list.empty()) return;
        line.only_jinja = "\"tools\"";
        line.tools_json = list.dump();
    }
    /// Answers so far are shown and not taught.
    void without_loss() {
        for (Message& message : line.messages)
            if (message.role == kAnswers) message.weight = 0;
    }
    ConversationLine finish() {
        if (line.messages.empty()) refuse("no messages");
        line.messages_json = list_.dump();
        return std::move(line);
    }

  private:
    Message checked(Json const& message) {
        if (!message.is_object()) refuse("{} follows, where an object is expected", kind(message));
        Message read{.role = text_of(message, "role"), .content = ""};
        for (char const* const key : kOnlyJinja)
            if (!is_empty(value_of(message, key)) && line.only_jinja.empty())
                line.only_jinja = fmt::format("message {}: \"{}\"", count_, key);
        bool const calls = !is_empty(value_of(message, "tool_calls")) || !is_empty(value_of(message, "function_call"));
        Json const& content = value_of(message, "content");
        if (!content.is_null() || !calls) {
            if (!message.contains("content")) refuse("no \"content\"");
            if (!content.is_string() && !content.is_array())
                refuse("\"content\" is {}, where text is expected", kind(content));
            read.content = content_of(content);
        }
        read.weight = weight_of(message);
        return read;
    }

    static double weight_of(Json const& message) {
        Json const& weight = value_of(message, "weight");
        double value = 1;
        if (!weight.is_null()) {
            if (!weight.is_number()) refuse("\"weight\" is {}, where a number is expected", kind(weight));
            value = weight.get<double>();
            if (!(value >= 0 && value <= kLargestMessageWeight))
                refuse("\"weight\" is {}; it must be between 0 and {}", value, kLargestMessageWeight);
        }
        Json const &train = value_of(message, "train"), &training = value_of(message, "training");
        if (!train.is_null() && !training.is_null()) refuse("both \"train\" and \"training\": keep one");
        char const* const key = train.is_null() ? "training" : "train";
        Json const& trained = train.is_null() ? training : train;
        if (trained.is_null()) return value;
        if (!trained.is_boolean()) refuse("\"{}\" is {}, where true or false is expected", key, kind(trained));
        if (!weight.is_null() && trained.get<bool>() != (value > 0))
            refuse("\"{}\" is {}, but \"weight\" is {}", key, trained.get<bool>(), value);
        return trained.get<bool>() ? value : 0;
    }

    Json list_ = Json::array();
    size_t count_ = 0;
};

/// ShareGPT's names of who speaks.
char const* role_of(std::string const& from) {
    for (auto const& [name, role] : {std::pair{"human", kAsks},
                                     {"user", kAsks},
                                     {"gpt", kAnswers},
                                     {"assistant", kAnswers},
                                     {"chatgpt", kAnswers},
                                     {"model", kAnswers},
                                     {"system", kInstructs},
                                     {"tool", kGivesResults},
                                     {"observation", kGivesResults},
                                     {"function_response", kGivesResults},
                                     {"function_call", kAnswers}})
        if (from == name) return role;
    refuse("\"from\" is \"{:.40}\", which is none of human, gpt, system, function_call, observation", from);
}

Json message_of_turn(Json const& turn) {
    if (!turn.is_object()) refuse("{} follows, where an object is expected", kind(turn));
    std::string const& from = text_of(turn, "from");
    Json message{{"role", role_of(from)}, {"content", text_of(turn, "value")}};
    if (from == "function_call") {
        Json const call = json_in_text(turn.at("value").get_ref<std::string const&>(), "value");
        if (!call.is_object() && !call.is_array())
            refuse("the \"value\" of a function_call is {}, where an object is expected", kind(call));
        message["content"] = "";
        for (Json const& one : call.is_array() ? call : Json::array({call}))
            message["tool_calls"].push_back({{"type", "function"}, {"function", one}});
    }
    for (char const* const key : kOfLoss)
        if (turn.contains(key)) message[key] = turn.at(key);
    return message;
}

void read_sharegpt(Json const& record, Collector& into) {
    if (!is_empty(value_of(record, "system"))) into.add(kInstructs, text_of(record, "system"));
    size_t number = 0;
    for (Json const& turn : list_of(record, "conversations")) {
        ++number;
        if (turn.is_object() && turn.contains("role") && !turn.contains("from")) {
            into.add(turn);
            continue;
        }
        try {
            into.add(message_of_turn(turn));
        } catch (Problem const& problem) {
            if (problem.text.starts_with("message ")) throw;
            refuse("turn {}: {}", number, problem.text);
        }
    }
}

void read_alpaca(Json const& record, Collector& into) {
    if (!is_empty(value_of(record, "system"))) into.add(kInstructs, text_of(record, "system"));
    if (!is_empty(value_of(record, "history")))
        for (Json const& turn : list_of(record, "history")) {
            if (!turn.is_array() || turn.size() != 2 || !turn[0].is_string() || !turn[1].is_string())
                refuse("\"history\" must be a list of pairs of texts");
            into.add(kAsks, turn[0]);
            into.add(kAnswers, turn[1]);
        }
    std::string asked = text_of(record, "instruction");
    if (Json const& input = value_of(record, "input"); !is_empty(input)) asked += "\n" + text_of(record, "input");
    into.add(kAsks, asked);
    into.add(kAnswers, text_of(record, "output"));
}

void read_prompt_completion(Json const& record, Collector& into) {
    for (auto const& [key, other] : {std::pair{"prompt", "completion"}, {"completion", "prompt"}})
        if (!record.contains(key)) refuse("\"{}\" without \"{}\"", other, key);
    for (auto const& [key, role] : {std::pair{"prompt", kAsks}, {"completion", kAnswers}}) {
        Json const& said = record.at(key);
        if (said.is_array())
            into.add_all(said);
        else
            into.add(role, text_of(record, key));
        if (role == kAsks) into.without_loss();
    }
}

RecordFormat recognised(Json const& record) {
    auto const has = [&](char const* key) { return !value_of(record, key).is_null(); };
    bool const pair = has("prompt") || has("completion");
    if (has("messages")) {
        if (pair) refuse("both \"messages\" and \"prompt\" or \"completion\": chat.records says which of them counts");
        return RecordFormat::messages;
    }
    if (has("conversations")) return RecordFormat::sharegpt;
    if (has("instruction")) return RecordFormat::alpaca;
    if (pair) return RecordFormat::prompt_completion;
    if (has("chosen")) refuse("\"chosen\": preferences between answers are not supported");
    refuse("neither \"messages\" nor \"prompt\" and \"completion\", nor \"conversations\", nor \"instruction\"");
}

ConversationLine read_record(Json const& record, RecordFormat format) {
    if (!record.is_object()) refuse("{}, where an object is expected", kind(record));
    if (format == RecordFormat::automatic) format = recognised(record);
    Collector collector;
    if (format == RecordFormat::messages || format == RecordFormat::sharegpt) {
        char const* const key = format == RecordFormat::messages ? "messages" : "conversations";
        if (!record.contains(key)) refuse("no \"{}\"", key);
    }
    switch (format) {
        case RecordFormat::messages:
            collector.add_all(list_of(record, "messages"));
            break;
        case RecordFormat::sharegpt:
            read_sharegpt(record, collector);
            break;
        case RecordFormat::alpaca:
            read_alpaca(record, collector);
            break;
        default:
            read_prompt_completion(record, collector);
    }
    collector.tools(value_of(record, "tools"));
    ConversationLine line = collector.finish();
    line.format = format;
    return line;
}

}  // namespace

char const* to_string(RecordFormat format) {
    constexpr std::array kNames{"automatic", "messages", "prompt and completion", "ShareGPT", "Alpaca"};
    return kNames.at(static_cast<size_t>(format));
}

ConversationLine parse_conversation(std::string_view line, RecordFormat format) {
    ConversationLine failed;
    Checker checker(kSaid);
    parse(line, checker);
    failed.problem = std::move(checker.problem);
    if (!failed.problem.empty()) return failed;
    try {
        return read_record(Json::parse(line), format);
    } catch (Problem const& problem) {
        failed.problem = problem.text;
    } catch (nlohmann::json::exception const& error) {  // a number beyond every double, or a text of JSON in a text
        failed.problem = fmt::format("malformed JSON: {}", error.what());
    }
    return failed;
}

}  // namespace perigee
