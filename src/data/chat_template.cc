#include "data/chat_template.h"

#include <fmt/format.h>

#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>

namespace perigee {

void describe(Schema& schema, ChatRole& options) {
    schema.add("role", options.role, "name of the role, as in the conversations")
        .add("prefix", options.prefix, "text before what the role says")
        .add("suffix", options.suffix, "text after it");
}

void describe(Schema& schema, ChatOptions& options) {
    schema
        .choice(
            "template", options.format,
            {{"auto", ChatFormat::automatic},
             {"none", ChatFormat::none},
             {"chatml", ChatFormat::chatml},
             {"llama3", ChatFormat::llama3},
             {"custom", ChatFormat::custom}},
            "the text around messages; auto: the tokenizer folder's own Jinja template, none where it has none; none: "
            "messages as they are, an end of document after each answer; custom: what begin, roles and stop say")
        .add("begin", options.begin, "custom: text before the first message")
        .list("roles", options.roles, "custom: the roles that conversations have; \"assistant\" is the model's")
        .add("stop", options.stop,
             "custom: what ends an answer, part of the assistant's suffix; empty: the tokenizer's end of a document")
        .choice("loss", options.loss,
                {{"assistant", ChatLoss::assistant}, {"last", ChatLoss::last}, {"all", ChatLoss::all}},
                "which tokens carry loss: those of all answers and their stop, of the last answer, or all tokens; "
                "multiplied by the message's \"weight\"")
        .add("max_tokens", options.max_tokens, between(0, 1 << 30),
             "longest conversation; 0: what a sample of packing: best_fit holds, data.sequence_length + 1")
        .choice("too_long", options.too_long,
                {{"drop", TooLong::drop},
                 {"drop_oldest", TooLong::drop_oldest},
                 {"cut_end", TooLong::cut_end},
                 {"stop", TooLong::stop}},
                "what to do with longer ones: drop them; drop their oldest turns, keeping the leading system messages; "
                "cut their end off; or stop. All but stop are counted")
        .choice("malformed", options.malformed, {{"stop", Malformed::stop}, {"skip", Malformed::skip}},
                "what to do with lines that are no conversation: stop at the first, or skip and count them")
        .choice("records", options.records,
                {{"auto", RecordFormat::automatic},
                 {"messages", RecordFormat::messages},
                 {"prompt_completion", RecordFormat::prompt_completion},
                 {"sharegpt", RecordFormat::sharegpt},
                 {"alpaca", RecordFormat::alpaca}},
                "how the lines of the files say what was said; auto: told by their keys")
        .section("jinja", options.jinja, "template: auto: which template, and what it is given.");
}

void describe(Schema& schema, JinjaOptions& options) {
    schema.add("file", options.file, "path of a Jinja template to use instead of the tokenizer folder's")
        .add("name", options.name,
             "which of a folder's named templates; empty: tool_use where there are tools, default")
        .add("arguments", options.arguments,
             "a JSON object of what the template is given besides, such as {\"enable_thinking\": false}")
        .add("date", options.date, "the day that strftime_now tells, as YYYY-MM-DD; empty: today")
        .choice(
            "rewritten", options.rewritten, {{"split", Rewritten::split}, {"no_loss", Rewritten::no_loss}},
            "what becomes of answers that the template writes otherwise once more messages follow, as where it drops "
            "earlier reasoning: split ends a further document after them, in which they stand as they are generated; "
            "no_loss: they carry no loss");
}

namespace {

bool is_day(std::string const& text) {
    std::tm day{};
    char const* const end = ::strptime(text.c_str(), "%Y-%m-%d", &day);
    if (text.size() != 10 || end == nullptr || *end != '\0') return false;
    // strptime takes any day up to 31 for any month.
    return std::chrono::year_month_day(std::chrono::year(day.tm_year + 1900),
                                       std::chrono::month(static_cast<unsigned>(day.tm_mon + 1)),
                                       std::chrono::day(static_cast<unsigned>(day.tm_mday)))
        .ok();
}

std::vector<ChatRole> chatml_roles() {
    std::vector<ChatRole> roles;
    for (char const* const role : {kInstructs, kAsks, kAnswers, kGivesResults})
        roles.push_back({role, fmt::format("<|im_start|>{}\n", role), "<|im_end|>\n"});
    return roles;
}

std::vector<ChatRole> llama3_roles() {
    std::vector<ChatRole> roles;
    for (auto const& [role, header] :
         {std::pair{kInstructs, kInstructs}, {kAsks, kAsks}, {kAnswers, kAnswers}, {kGivesResults, "ipython"}})
        roles.push_back({role, fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", header), "<|eot_id|>"});
    return roles;
}

}  // namespace

ChatTemplate chat_template(ChatOptions const& options) {
    ChatTemplate made;
    switch (options.format) {
        case ChatFormat::automatic:
        case ChatFormat::none:
            made.tokenizer_prefix = true;
            for (char const* const role : {kInstructs, kAsks, kAnswers}) made.roles.push_back({role, "", ""});
            break;
        case ChatFormat::chatml:
            made.roles = chatml_roles();
            made.stop = "<|im_end|>";
            break;
        case ChatFormat::llama3:
            made.begin = "<|begin_of_text|>";
            made.trim = true;
            made.roles = llama3_roles();
            made.stop = "<|eot_id|>";
            break;
        case ChatFormat::custom:
            made.begin = options.begin;
            made.roles = options.roles;
            made.stop = options.stop;
            break;
    }
    return made;
}

std::string as_jinja(ChatTemplate const& chat) {
    auto const quoted = [](std::string const& text) { return nlohmann::json(text).dump(); };
    std::string const said = fmt::format("message['content']{}", chat.trim ? " | trim" : "");
    std::string text = chat.begin.empty() ? "" : fmt::format("{{{{ {} }}}}", quoted(chat.begin));
    std::string opening;
    text += "{% for message in messages %}";
    char const* word = "if";
    for (ChatRole const& role : chat.roles) {
        text +=
            fmt::format("{{% {} message['role'] == {} %}}{{{{ {} }}}}", word, quoted(role.role), quoted(role.prefix));
        size_t const end = role.role == kAnswers ? role.suffix.find(chat.stop) + chat.stop.size() : 0;
        text += role.role == kAnswers
                    ? fmt::format("{{% generation %}}{{{{ {} }}}}{{{{ {} }}}}{{% endgeneration %}}{{{{ {} }}}}", said,
                                  quoted(role.suffix.substr(0, end)), quoted(role.suffix.substr(end)))
                    : fmt::format("{{{{ {} }}}}{{{{ {} }}}}", said, quoted(role.suffix));
        if (role.role == kAnswers) opening = role.prefix;
        word = "elif";
    }
    return text + fmt::format(
                      "{{% else %}}{{{{ raise_exception('no role ' + message['role']) }}}}{{% endif %}}{{% endfor %}}"
                      "{{% if add_generation_prompt %}}{{{{ {} }}}}{{% endif %}}",
                      quoted(opening));
}

std::vector<std::string> problems(JinjaOptions const& options) {
    std::vector<std::string> found;
    auto const arguments = nlohmann::json::parse(options.arguments, nullptr, /*allow_exceptions=*/false);
    if (!arguments.is_object()) found.push_back("chat.jinja.arguments: must be a JSON object, such as {\"x\": true}");
    if (!options.date.empty() && !is_day(options.date))
        found.push_back(fmt::format("chat.jinja.date: \"{}\" is no day written as YYYY-MM-DD", options.date));
    return found;
}

std::vector<std::string> problems(ChatOptions const& options) {
    std::vector<std::string> found = problems(options.jinja);
    if (options.format != ChatFormat::custom) {
        if (!options.begin.empty() || !options.roles.empty() || !options.stop.empty())
            found.push_back("chat: begin, roles and stop describe a template of your own: set chat.template: custom");
        return found;
    }
    std::set<std::string> names;
    for (ChatRole const& role : options.roles) {
        if (role.role.empty()) found.push_back("chat.roles: a role has no name");
        if (!names.insert(role.role).second) found.push_back(fmt::format("chat.roles: two of \"{}\"", role.role));
        if (role.role == kAnswers && role.suffix.find(options.stop) == role.suffix.npos)
            found.push_back(
                fmt::format("chat.stop: \"{}\" is not in the suffix of \"{}\", \"{}\", so no answer would end",
                            options.stop, kAnswers, role.suffix));
    }
    if (!names.contains(kAnswers)) found.push_back(fmt::format("chat.roles: none is \"{}\", the model's", kAnswers));
    return found;
}

}  // namespace perigee
