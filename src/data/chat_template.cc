#include "data/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace perigee {

void describe(Schema& schema, ChatRole& options) {
    schema.add("role", options.role, "name of the role, as in the conversations")
        .add("prefix", options.prefix, "text before what the role says")
        .add("suffix", options.suffix, "text after it");
}

void describe(Schema& schema, ChatOptions& options) {
    schema
        .choice("template", options.format,
                {{"none", ChatFormat::none},
                 {"chatml", ChatFormat::chatml},
                 {"llama3", ChatFormat::llama3},
                 {"custom", ChatFormat::custom}},
                "the text around messages; none: messages as they are, an end of document after each answer; custom: "
                "what begin, roles and stop say")
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
                "what to do with lines that are no conversation: stop at the first, or skip and count them");
}

namespace {

std::vector<ChatRole> chatml_roles() {
    std::vector<ChatRole> roles;
    for (char const* const role : {kInstructs, kAsks, kAnswers, "tool"})
        roles.push_back({role, fmt::format("<|im_start|>{}\n", role), "<|im_end|>\n"});
    return roles;
}

std::vector<ChatRole> llama3_roles() {
    std::vector<ChatRole> roles;
    for (auto const& [role, header] :
         {std::pair{kInstructs, kInstructs}, {kAsks, kAsks}, {kAnswers, kAnswers}, {"tool", "ipython"}})
        roles.push_back({role, fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", header), "<|eot_id|>"});
    return roles;
}

}  // namespace

ChatTemplate chat_template(ChatOptions const& options) {
    ChatTemplate made;
    switch (options.format) {
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

std::vector<std::string> problems(ChatOptions const& options) {
    std::vector<std::string> found;
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
