#include "data/conversation.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "data/chat_template.h"
#include "io/strict_json.h"

namespace perigee {

namespace {

using nlohmann::json;

/// Events of the line, kept to what matters; nlohmann's parser does not recurse.
class ConversationReader : public nlohmann::json_sax<json> {
  public:
    ConversationLine line;
    std::optional<std::string> prompt, completion;
    bool has_messages = false;

    bool null() override { return other("null"); }
    bool boolean(bool) override { return other("a boolean"); }
    bool number_integer(number_integer_t x) override { return number(static_cast<double>(x)); }
    bool number_unsigned(number_unsigned_t x) override { return number(static_cast<double>(x)); }
    bool number_float(number_float_t x, string_t const&) override { return number(x); }
    bool binary(binary_t&) override { return other("binary"); }
    bool string(string_t& text) override {
        if (depth_ == kLine && key_ == "prompt") return prompt = std::move(text), true;
        if (depth_ == kLine && key_ == "completion") return completion = std::move(text), true;
        if (in_message() && key_ == "role") return line.messages.back().role = std::move(text), true;
        if (in_message() && is_reasoning() && text.empty()) return true;
        if (in_message() && key_ == "content") return line.messages.back().content = std::move(text), true;
        return other("a text");
    }
    bool key(string_t& name) override {
        if (depth_ != kLine && !in_message()) return true;
        key_ = std::move(name);
        bool const matters = depth_ == kLine ? key_ == "messages" || key_ == "prompt" || key_ == "completion"
                                             : key_ == "role" || key_ == "content" || key_ == "weight";
        if (matters && !(depth_ == kLine ? keys_ : message_keys_).insert(key_).second)
            return refuse(fmt::format("two \"{}\"", key_));
        return true;
    }
    bool start_object(size_t) override {
        if (in_messages_ && depth_ == kMessages) {
            line.messages.emplace_back();
            message_keys_.clear();
        } else if (depth_ > 0 && !other("an object")) {
            return false;
        }
        return deeper();
    }
    bool start_array(size_t) override {
        if (depth_ == kLine && key_ == "messages") {
            has_messages = in_messages_ = true;
        } else if (!other("an array")) {
            return false;
        }
        return deeper();
    }
    bool end_object() override {
        bool const ends_message = in_message();
        --depth_;
        if (!ends_message) return true;
        for (char const* const needed : {"role", "content"})
            if (!message_keys_.contains(needed)) return refuse(fmt::format("no \"{}\"", needed));
        return true;
    }
    bool end_array() override {
        if (--depth_ == kLine) in_messages_ = false;
        return true;
    }
    bool parse_error(size_t position, std::string const&, json::exception const& error) override {
        return line.problem = json_problem(position, error.what()), false;
    }

  private:
    // Depths: what is open around a value.
    static constexpr int kLine = 1, kMessages = 2, kMessage = 3;

    bool is_reasoning() const { return key_ == "reasoning_content" || key_ == "reasoning" || key_ == "thinking"; }
    bool in_message() const { return in_messages_ && depth_ == kMessage; }

    /// Stops reading; says which message it was.
    bool refuse(std::string const& problem) {
        line.problem = in_messages_ && depth_ >= kMessages
                           ? fmt::format("message {}: {}", line.messages.size(), problem)
                           : problem;
        return false;
    }

    bool number(double x) {
        if (!in_message() || key_ != "weight") return other("a number");
        if (!(x >= 0 && x <= kLargestMessageWeight))
            return refuse(fmt::format("\"weight\" is {}; it must be between 0 and {}", x, kLargestMessageWeight));
        line.messages.back().weight = x;
        return true;
    }

    /// A value of a kind that means nothing here, which is fine under keys that mean nothing either.
    bool other(char const* what) {
        auto const expected = [&](char const* kind) {
            return refuse(fmt::format("\"{}\" is {}, where {} is expected", key_, what, kind));
        };
        if (depth_ == 0) return refuse(fmt::format("{}, where an object is expected", what));
        if (depth_ == kLine && key_ == "messages") return expected("a list");
        if (depth_ == kLine && (key_ == "prompt" || key_ == "completion")) return expected("text");
        if (in_messages_ && depth_ == kMessages)
            return refuse(fmt::format("{} follows, where an object is expected", what));
        if (!in_message()) return true;
        if (key_ == "role" || key_ == "content") return expected("text");
        if (key_ == "weight") return expected("a number");
        bool const unsaid = key_ == "tool_calls" || key_ == "function_call" || is_reasoning();
        if (unsaid && std::string_view(what) != "null") return refuse(fmt::format("\"{}\" is not supported", key_));
        return true;
    }

    bool deeper() {
        return ++depth_ <= kMaxJsonDepth || refuse(fmt::format("nested more than {} deep", kMaxJsonDepth));
    }

    int depth_ = 0;
    bool in_messages_ = false;
    std::string key_;  ///< of the line or of a message
    std::set<std::string> keys_, message_keys_;
};

}  // namespace

ConversationLine parse_conversation(std::string_view line) {
    ConversationReader reader;
    json::sax_parse(line, &reader);
    ConversationLine& read = reader.line;
    if (!read.problem.empty()) return {{}, read.problem};
    bool const pair = reader.prompt.has_value() || reader.completion.has_value();
    if (pair && reader.has_messages) return {{}, "both \"messages\" and \"prompt\" or \"completion\""};
    if (pair) {
        if (!reader.prompt) return {{}, "\"completion\" without \"prompt\""};
        if (!reader.completion) return {{}, "\"prompt\" without \"completion\""};
        return {{{kAsks, *reader.prompt}, {kAnswers, *reader.completion}}, ""};
    }
    if (!reader.has_messages) return {{}, "neither \"messages\" nor \"prompt\" and \"completion\""};
    if (read.messages.empty()) return {{}, "no messages"};
    return std::move(read);
}

}  // namespace perigee
