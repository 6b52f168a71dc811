#include "data/jinja_encoder.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "data/tokenizer/unicode.h"

namespace perigee {

namespace {

using Fate = EncodedChat::Fate;
constexpr size_t kMostMarkerBytes = 64;

using Names = std::vector<std::string>;

/// Names between `open` and `close` that hold nothing that is in `never`, each once.
Names names_between(std::string_view text, std::string_view open, std::string_view close, char const* never) {
    Names found;
    for (size_t at = text.find(open); at != text.npos; at = text.find(open, at + 1)) {
        size_t const end = text.find(close, at + open.size());
        if (end == text.npos || end - at > kMostMarkerBytes) continue;
        std::string name(text.substr(at, end + close.size() - at));
        std::string_view const inside = std::string_view(name).substr(open.size(), end - at - open.size());
        if (!inside.empty() && inside.find_first_of(never) == inside.npos &&
            std::ranges::find(found, name) == found.end())
            found.push_back(std::move(name));
    }
    return found;
}

/// Names that cannot be meant as text: in <| |>, [| |] or DeepSeek's wide bars, or with Gemma's bar on one side.
Names markers(std::string_view text) {
    Names all;
    for (auto const& [open, close] : {std::pair<std::string_view, std::string_view>{"<|", "|>"},
                                      {"<\uFF5C", "\uFF5C>"},
                                      {"[|", "|]"},
                                      {"<|", ">"},
                                      {"<", "|>"}}) {
        bool const one_bar = open.size() + close.size() == 3;
        for (std::string& name : names_between(text, open, close, one_bar ? " \n\t<>|{}[]()'" : " \n\t<"))
            all.push_back(std::move(name));
    }
    return all;
}

/// Names that a tokenizer may have or not: [INST] anywhere, <start_of_turn> in what opens an answer. Some templates
/// mean them as text.
std::array<Names, 2> tags(std::string_view frame, std::string_view opening) {
    auto const is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
    std::array found{names_between(frame, "[", "]", " \n\t<>[]{}|\"',"), names_between(opening, "<", ">", " \n\t<|>")};
    std::erase_if(found[0], [&](std::string const& name) { return std::ranges::any_of(name, is_lower); });
    std::erase_if(found[1], [](std::string const& name) { return name == "<think>" || name == "</think>"; });
    return found;
}

/// Of special tokens. Marks of reasoning are left out: templates look for them in what was said. So is what templates
/// look for, take apart or trim as plain text: single characters and white space.
Names special_names(Tokenizer const& tokenizer) {
    Names names;
    for (int32_t id = 0; id < tokenizer.vocab_size() && tokenizer.knows_special(); ++id) {
        if (!tokenizer.is_special(id)) continue;
        std::string name = tokenizer.piece(id);
        bool const reasoning = name == "<think>" || name == "</think>";
        bool const plain = name.find_first_not_of(" \t\r\n") == name.npos || utf8::first(name).bytes == name.size();
        if (!reasoning && !plain) names.push_back(std::move(name));
    }
    return names;
}

size_t common_prefix(std::vector<int32_t> const& a, std::vector<int32_t> const& b) {
    return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

/// The messages from `first` on, after those that stay.
ConversationLine part_of(ConversationLine const& line, size_t kept, size_t first, size_t end) {
    using Json = nlohmann::ordered_json;
    Json const all = Json::parse(line.messages_json);
    ConversationLine part{
        .messages = {}, .problem = "", .only_jinja = "", .messages_json = "", .tools_json = line.tools_json};
    Json list = Json::array();
    for (size_t i = 0; i < end; ++i) {
        if (i >= kept && i < first) continue;
        part.messages.push_back(line.messages[i]);
        list.push_back(all[i]);
    }
    part.messages_json = list.dump();
    return part;
}

EncodedChat nothing(Fate fate, int64_t full_tokens) {
    return {.fate = fate, .full_tokens = full_tokens, .tokens = {}, .weights = {}};
}

}  // namespace

JinjaEncoder::JinjaEncoder(JinjaTemplate chat, ChatOptions options, int64_t max_tokens, Tokenizer const& tokenizer,
                           std::chrono::milliseconds patience)
    : chat_(std::move(chat)),
      options_(std::move(options)),
      max_tokens_(max_tokens),
      tokenizer_(&tokenizer),
      patience_(patience) {
    PERIGEE_CHECK(max_tokens > 0, "conversations of {} tokens", max_tokens);
    options_.jinja.date = day_of(options_.jinja);                                       // the same for all
    if (options_.loss == ChatLoss::all) options_.jinja.rewritten = Rewritten::no_loss;  // one document has all
    check_markers();
}

JinjaRenderer& JinjaEncoder::renderer(bool tools) {
    auto& wanted = tools && !chat_.tools_text.empty() ? tools_renderer_ : renderer_;
    if (!wanted || wanted->ended())  // a server goes on after one conversation that its helper did not survive
        wanted = std::make_unique<JinjaRenderer>(chat_, tools, options_.jinja, special_names(*tokenizer_), patience_);
    return *wanted;
}

/// A marker that the template writes and the tokenizer spells out; empty where there is none. One that could be meant
/// as text counts where another of its kind is a token.
std::string JinjaEncoder::spelled_marker() const {
    std::string_view const frame = renderer_->frame();
    auto const spelled = [this](std::string const& name) { return is_spelled(name); };
    for (std::string const& name : markers(frame))
        if (is_spelled(name)) return name;
    for (auto const& [key, name] : chat_.special)
        if (!name.empty() && frame.find(name) != frame.npos && is_spelled(name)) return name;
    auto [square, angled] = tags(frame, renderer_->opening());
    auto const has = [&](Names const& names) { return !std::ranges::all_of(names, spelled); };
    std::string const& end = renderer_->stop();
    bool const angled_end = end.size() > 2 && end[0] == '<' && end.back() == '>' && !is_spelled(end);
    for (auto const& [names, counts] : {std::pair{&square, has(square)}, {&angled, has(angled) || angled_end}})
        if (auto const found = std::ranges::find_if(*names, spelled); counts && found != names->end()) return *found;
    return "";
}

void JinjaEncoder::check_markers() {
    JinjaRenderer const& first = renderer(false);
    if (first.stop().empty())
        fail(Category::config, "{}: it writes nothing after an answer, so that no answer would end", chat_.source);
    if (!tokenizer_->knows_special()) return;
    if (std::string const name = spelled_marker(); !name.empty())
        fail(Category::config, "{}: it writes {}, which is no single token of the tokenizer {}", chat_.source, name,
             tokenizer_->name());
    auto const ending = stop();
    if (std::ranges::none_of(ending, [&](int32_t id) { return tokenizer_->is_special(id); }))
        fail(
            Category::config,
            "{}: it ends answers with \"{}\", which is no special token of the tokenizer {}: answers would end in text",
            chat_.source, first.stop(), tokenizer_->name());
}

std::vector<int32_t> JinjaEncoder::stop() const {
    return tokenizer_->encode_with_special(renderer_->stop(), TextAfter::text);
}

/// Where pieces encoded apart are not the tokens of the whole text: a token lies across the beginning or the end of an
/// answer. One across the beginning belongs to the answer.
void JinjaEncoder::realign(std::string_view text, std::vector<JinjaRenderer::Answer> const& answers,
                           std::vector<Message> const& messages, EncodedChat& chat) const {
    chat.weights.assign(chat.tokens.size(), weight_around());
    auto const tokens_before = [&](size_t byte) {
        return common_prefix(chat.tokens, tokenizer_->encode_guarded(text.substr(0, byte)));
    };
    for (auto const& answer : answers) {
        size_t const begin = tokens_before(answer.begin), end = std::max(begin, tokens_before(answer.end));
        std::fill(chat.weights.begin() + static_cast<std::ptrdiff_t>(begin),
                  chat.weights.begin() + static_cast<std::ptrdiff_t>(end),
                  static_cast<float>(messages[answer.message].weight));
    }
}

EncodedChat JinjaEncoder::encode(JinjaRenderer::Document const& document, std::vector<Message> const& messages) const {
    std::string_view const text = document.text;
    float const around = weight_around();
    EncodedChat chat;
    TextAfter after = TextAfter::nothing;
    auto const add = [&](size_t begin, size_t end, float weight) {
        auto const tokens = tokenizer_->encode_guarded(text.substr(begin, end - begin), after);
        after = text_after(*tokenizer_, tokens, after);
        chat.tokens.insert(chat.tokens.end(), tokens.begin(), tokens.end());
        chat.weights.resize(chat.tokens.size(), weight);
    };
    size_t done = 0;
    for (auto const& answer : document.answers) {
        add(done, answer.begin, around);
        add(answer.begin, answer.end, static_cast<float>(messages[answer.message].weight));
        done = answer.end;
    }
    add(done, text.size(), around);
    if (auto whole = tokenizer_->encode_guarded(text); whole != chat.tokens) {
        chat.tokens = std::move(whole);
        realign(text, document.answers, messages, chat);
    }
    chat.full_tokens = static_cast<int64_t>(chat.tokens.size());
    return chat;
}

/// Within max_tokens, by the options' policy.
EncodedChat JinjaEncoder::fitted(EncodedChat chat, ConversationLine const& line,
                                 JinjaRenderer::Document const& document) {
    if (chat.full_tokens > max_tokens_) {
        if (options_.too_long == TooLong::drop_oldest) return without_oldest(std::move(chat), line, document);
        if (options_.too_long != TooLong::cut_end) return nothing(Fate::too_long, chat.full_tokens);
        chat.fate = Fate::shortened;
        chat.tokens.resize(static_cast<size_t>(max_tokens_));
        chat.weights.resize(chat.tokens.size());
    }
    return carries_loss(chat) ? chat : nothing(Fate::without_loss, chat.full_tokens);
}

EncodedChat JinjaEncoder::without_oldest(EncodedChat chat, ConversationLine const& line,
                                         JinjaRenderer::Document const& document) {
    size_t const messages = document.messages;
    auto const role = [&](size_t i) -> std::string const& { return line.messages[i].role; };
    size_t kept = 0;
    while (kept < messages && role(kept) == kInstructs) ++kept;
    std::vector<size_t> firsts;  // messages that may follow those that stay
    for (size_t i = kept + 1; i < messages; ++i)
        if (role(i) == kAsks) firsts.push_back(i);
    // Assumes that fewer messages make fewer tokens. Documents are rendered only of what fits: each of its answers
    // takes a rendering of its own.
    auto const too_long = [&](size_t first) {
        ConversationLine const rest = part_of(line, kept, first, messages);
        auto const text = renderer(!rest.tools_json.empty()).text(rest.messages_json, rest.tools_json);
        return text && static_cast<int64_t>(tokenizer_->encode_guarded(*text).size()) > max_tokens_;
    };
    for (auto at = std::ranges::partition_point(firsts, too_long); at != firsts.end(); ++at) {
        if (too_long(*at)) continue;  // the template refused one before it
        ConversationLine const rest = part_of(line, kept, *at, messages);
        JinjaRenderer::Request asked{rest.messages_json, rest.tools_json, {}, true};
        for (auto const& answer : document.answers)  // others carry loss in another document
            if (answer.message >= *at) asked.wanted.push_back(answer.message - *at + kept);
        auto const rendered = renderer(!rest.tools_json.empty()).documents({asked})[0];
        if (!rendered.problem.empty()) continue;
        EncodedChat shorter = encode(rendered.documents[0], rest.messages);
        if (shorter.full_tokens > max_tokens_) continue;
        if (!carries_loss(shorter)) return nothing(Fate::without_loss, chat.full_tokens);
        shorter.fate = Fate::shortened;
        shorter.full_tokens = chat.full_tokens;
        return shorter;
    }
    return nothing(Fate::too_long, chat.full_tokens);
}

JinjaRenderer::Request JinjaEncoder::request(ConversationLine const& line) const {
    JinjaRenderer::Request made{line.messages_json, line.tools_json, {}, false};
    for (size_t i = 0; i < line.messages.size(); ++i)
        if (line.messages[i].role == kAnswers && line.messages[i].weight != weight_around() &&
            counts_in_loss(options_, line.messages, i))
            made.wanted.push_back(i);
    return made;
}

std::vector<JinjaRenderer::Rendered> JinjaEncoder::render(std::vector<ConversationLine> const& lines) {
    std::vector<JinjaRenderer::Rendered> all(lines.size());
    for (bool const tools : {false, true}) {
        std::vector<JinjaRenderer::Request> requests;
        std::vector<size_t> places;
        for (size_t i = 0; i < lines.size(); ++i) {
            if ((!lines[i].tools_json.empty() && !chat_.tools_text.empty()) != tools) continue;
            requests.push_back(request(lines[i]));
            places.push_back(i);
        }
        if (requests.empty()) continue;
        auto rendered = renderer(tools).documents(requests);
        for (size_t i = 0; i < places.size(); ++i) all[places[i]] = std::move(rendered[i]);
    }
    return all;
}

std::string JinjaEncoder::problem_of(ConversationLine const& line, JinjaRenderer::Rendered const& rendered) const {
    for (std::string const* const json : {&line.messages_json, &line.tools_json})
        if (json->find(kGuard) != json->npos) return "it holds U+FDD0, which is no character";
    if (options_.loss != ChatLoss::all) return "";
    for (size_t i = 0; i < line.messages.size(); ++i)
        if (line.messages[i].role != kAnswers && line.messages[i].weight != 1)
            return fmt::format("message {}: with chat.loss: all and a Jinja template, only answers may have a weight",
                               i + 1);
    return rendered.rewritten > 0 ? "an answer with a weight is one that the template writes otherwise later on" : "";
}

std::vector<EncodedConversation> JinjaEncoder::encode_all(std::vector<ConversationLine> const& lines) {
    auto const rendered = render(lines);
    std::vector<EncodedConversation> all(lines.size());
    for (size_t i = 0; i < lines.size(); ++i) {
        all[i].problem = rendered[i].problem;
        all[i].rewritten = rendered[i].rewritten;
        all[i].without_reasoning = rendered[i].without_reasoning;
        if (std::string const problem = problem_of(lines[i], rendered[i]); !problem.empty()) all[i].problem = problem;
        if (!all[i].problem.empty()) continue;
        for (auto const& document : rendered[i].documents)
            all[i].documents.push_back(fitted(encode(document, lines[i].messages), lines[i], document));
        if (all[i].documents.empty()) all[i].documents.push_back(nothing(Fate::without_loss, 0));
    }
    return all;
}

std::vector<int32_t> JinjaEncoder::prompt(ConversationLine const& line) {
    return tokenizer_->encode_guarded(renderer(!line.tools_json.empty()).prompt(line.messages_json, line.tools_json));
}

}  // namespace perigee
