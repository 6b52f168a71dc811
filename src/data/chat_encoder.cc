#include "data/chat_encoder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "data/jinja_encoder.h"
#include "data/tokenizer/unicode.h"

namespace perigee {

namespace {

/// What Python's str.strip() drops, which templates mean by "trim": Unicode's white space and four separators of ASCII.
bool is_trimmed(char32_t c) { return utf8::is_space(c) || (0x1C <= c && c <= 0x1F); }

/// `text` is whole UTF-8.
std::string_view trimmed(std::string_view text) {
    while (!text.empty() && is_trimmed(utf8::code_point(text))) text.remove_prefix(utf8::first(text).bytes);
    while (!text.empty() && is_trimmed(utf8::code_point(utf8::last(text)))) text.remove_suffix(utf8::last(text).size());
    return text;
}

/// Names in <| |>, each once.
std::vector<std::string> markers(ChatTemplate const& chat) {
    std::vector<std::string> found;
    std::string text = chat.begin;
    for (ChatRole const& role : chat.roles) text += role.prefix + role.suffix;
    for (size_t at = text.find("<|"); at != text.npos; at = text.find("<|", at + 1)) {
        std::string name = text.substr(at, text.find("|>", at) + 2 - at);
        if (std::ranges::find(found, name) == found.end()) found.push_back(std::move(name));
    }
    return found;
}

/// Markers of a built-in template that are not one token.
std::vector<std::string> missing_markers(ChatFormat format, Tokenizer const& tokenizer) {
    auto missing = markers(chat_template({.format = format}));
    std::erase_if(missing, [&](auto const& name) { return tokenizer.encode_with_special(name).size() == 1; });
    return missing;
}

/// Where the leading system messages end.
size_t instructions(std::vector<Message> const& messages) {
    size_t end = 0;
    while (end < messages.size() && messages[end].role == kInstructs) ++end;
    return end;
}

/// These templates would leave it out.
void refuse_only_jinja(ConversationLine const& line) {
    if (line.only_jinja.empty()) return;
    fail(Category::data, "{} is not supported by this template; chat.template: auto is the one that may be able to",
         line.only_jinja);
}

void append(std::vector<int32_t> const& tokens, float weight, EncodedChat& chat) {
    chat.tokens.insert(chat.tokens.end(), tokens.begin(), tokens.end());
    chat.weights.insert(chat.weights.end(), tokens.size(), weight);
}

}  // namespace

bool carries_loss(EncodedChat const& chat) {
    return !chat.weights.empty() &&
           std::any_of(chat.weights.begin() + 1, chat.weights.end(), [](float weight) { return weight > 0; });
}

bool counts_in_loss(ChatOptions const& options, std::vector<Message> const& messages, size_t index) {
    auto const is_answer = [](Message const& message) { return message.role == kAnswers; };
    return options.loss == ChatLoss::all ||
           (is_answer(messages[index]) &&
            (options.loss == ChatLoss::assistant ||
             std::none_of(messages.begin() + static_cast<std::ptrdiff_t>(index) + 1, messages.end(), is_answer)));
}

TextAfter text_after(Tokenizer const& tokenizer, std::vector<int32_t> const& tokens, TextAfter before) {
    if (tokens.empty()) return before;
    return tokenizer.is_special(tokens.back()) ? TextAfter::special : TextAfter::text;
}

ConversationLine conversation_line(std::vector<Message> const& messages) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (Message const& message : messages) list.push_back({{"role", message.role}, {"content", message.content}});
    ConversationLine line;
    line.messages = messages;
    line.messages_json = list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return line;
}

std::unique_ptr<ConversationEncoder> make_conversation_encoder(FileSystem& files, ChatOptions const& options,
                                                               std::string const& tokenizer_name, int64_t max_tokens,
                                                               Tokenizer const& tokenizer) {
    if (options.format == ChatFormat::automatic)
        if (auto const chat = find_jinja_template(files, tokenizer_name, options.jinja))
            return std::make_unique<JinjaEncoder>(*chat, options, max_tokens, tokenizer);
    return std::make_unique<ChatEncoder>(options, max_tokens, tokenizer);
}

ChatEncoder::ChatEncoder(ChatOptions const& options, int64_t max_tokens, Tokenizer const& tokenizer)
    : options_(options), template_(chat_template(options)), max_tokens_(max_tokens), tokenizer_(&tokenizer) {
    PERIGEE_CHECK(max_tokens > 0, "conversations of {} tokens", max_tokens);
    check_markers();
}

void ChatEncoder::check_markers() const {
    bool const built_in = options_.format == ChatFormat::chatml || options_.format == ChatFormat::llama3;
    if (!built_in || !tokenizer_->knows_special()) return;
    auto const missing = missing_markers(options_.format, *tokenizer_);
    if (missing.empty()) return;
    std::string advice = "set chat.template to none, or to custom with the markers of this tokenizer";
    for (auto const& [format, name] : {std::pair{ChatFormat::chatml, "chatml"}, {ChatFormat::llama3, "llama3"}})
        if (missing_markers(format, *tokenizer_).empty()) advice = fmt::format("chat.template: {} fits", name);
    fail(Category::config, "chat.template: {} {} no single token{} of the tokenizer {}; {}", fmt::join(missing, ", "),
         missing.size() == 1 ? "is" : "are", missing.size() == 1 ? "" : "s", tokenizer_->name(), advice);
}

ChatRole const& ChatEncoder::role(std::string const& name) const {
    auto const found =
        std::ranges::find_if(template_.roles, [&](ChatRole const& candidate) { return candidate.role == name; });
    if (found != template_.roles.end()) return *found;
    std::vector<std::string> names;
    for (ChatRole const& known : template_.roles) names.push_back(known.role);
    fail(Category::data, "the template has no role \"{:.40}\"; known: {}", name, fmt::join(names, ", "));
}

std::vector<int32_t> ChatEncoder::begin() const {
    return template_.tokenizer_prefix ? tokenizer_->prefix() : tokenizer_->encode_with_special(template_.begin);
}

std::vector<int32_t> ChatEncoder::stop() const {
    if (template_.stop.empty()) return {tokenizer_->end_of_document()};
    return tokenizer_->encode_with_special(template_.stop, TextAfter::text);
}

/// The tokenizer's own prefix is put before a text that counts as the beginning of a document.
TextAfter ChatEncoder::after_begin() const {
    return template_.tokenizer_prefix ? TextAfter::nothing : text_after(*tokenizer_, begin(), TextAfter::nothing);
}

ChatEncoder::Piece ChatEncoder::piece(Message const& message, TextAfter before) const {
    ChatRole const& r = role(message.role);
    std::string const content = utf8::repaired(message.content);
    Piece piece;
    piece.before = tokenizer_->encode_with_special(r.prefix, before);
    TextAfter const said = text_after(*tokenizer_, piece.before, before);
    piece.said = tokenizer_->encode(template_.trim ? trimmed(content) : content, said);
    size_t end = 0;
    if (r.role == kAnswers) {
        end = template_.stop.empty() ? r.suffix.size() : r.suffix.find(template_.stop);
        std::ranges::copy(
            tokenizer_->encode_with_special(r.suffix.substr(0, end), text_after(*tokenizer_, piece.said, said)),
            std::back_inserter(piece.said));
        std::ranges::copy(stop(), std::back_inserter(piece.said));
        end += template_.stop.size();
    }
    piece.rest = tokenizer_->encode_with_special(r.suffix.substr(end), text_after(*tokenizer_, piece.said, said));
    return piece;
}

float ChatEncoder::weight_of(std::vector<Message> const& messages, size_t index) const {
    return counts_in_loss(options_, messages, index) ? static_cast<float>(messages[index].weight) : 0.0f;
}

EncodedChat ChatEncoder::encode_message(std::vector<Message> const& messages, size_t index, TextAfter before) const {
    Piece const p = piece(messages[index], before);
    float const inside = weight_of(messages, index), around = options_.loss == ChatLoss::all ? inside : 0;
    EncodedChat chat;
    append(p.before, around, chat);
    append(p.said, inside, chat);
    append(p.rest, around, chat);
    return chat;
}

size_t ChatEncoder::first_that_fits(std::vector<Message> const& messages, std::vector<EncodedChat> const& encoded,
                                    size_t kept, int64_t tokens) const {
    size_t first = kept;
    while (tokens > max_tokens_ && first < messages.size()) {
        // A turn is a question and what follows it up to the next one.
        do tokens -= static_cast<int64_t>(encoded[first++].tokens.size());
        while (first < messages.size() && messages[first].role != kAsks);
    }
    return first;
}

EncodedChat ChatEncoder::encode(std::vector<Message> const& messages) const {
    std::vector<EncodedChat> encoded;
    EncodedChat chat;
    append(begin(), options_.loss == ChatLoss::all ? 1 : 0, chat);
    chat.full_tokens = static_cast<int64_t>(chat.tokens.size());
    TextAfter before = after_begin();
    for (size_t i = 0; i < messages.size(); ++i) {
        encoded.push_back(encode_message(messages, i, before));
        before = text_after(*tokenizer_, encoded.back().tokens, before);
        chat.full_tokens += static_cast<int64_t>(encoded.back().tokens.size());
    }
    size_t const kept = instructions(messages);
    size_t first = kept;
    if (chat.full_tokens > max_tokens_) {
        if (options_.too_long == TooLong::drop_oldest)
            first = first_that_fits(messages, encoded, kept, chat.full_tokens);
        bool const fits = options_.too_long == TooLong::drop_oldest && first < messages.size();
        if (!fits && options_.too_long != TooLong::cut_end)
            return {.fate = EncodedChat::Fate::too_long, .full_tokens = chat.full_tokens, .tokens = {}, .weights = {}};
        chat.fate = EncodedChat::Fate::shortened;
    }
    for (size_t i = 0; i < messages.size(); ++i) {
        if (i >= kept && i < first) continue;
        std::ranges::copy(encoded[i].tokens, std::back_inserter(chat.tokens));
        std::ranges::copy(encoded[i].weights, std::back_inserter(chat.weights));
    }
    auto const size = std::min(chat.tokens.size(), static_cast<size_t>(max_tokens_));
    chat.tokens.resize(size);
    chat.weights.resize(size);
    if (!carries_loss(chat))
        return {.fate = EncodedChat::Fate::without_loss, .full_tokens = chat.full_tokens, .tokens = {}, .weights = {}};
    return chat;
}

std::vector<int32_t> ChatEncoder::prompt(std::vector<Message> const& messages) const {
    std::vector<int32_t> tokens = begin();
    TextAfter before = after_begin();
    for (Message const& message : messages) {
        Piece const p = piece(message, before);
        for (auto const* part : {&p.before, &p.said, &p.rest}) {
            before = text_after(*tokenizer_, *part, before);
            std::ranges::copy(*part, std::back_inserter(tokens));
        }
    }
    std::ranges::copy(tokenizer_->encode_with_special(role(kAnswers).prefix, before), std::back_inserter(tokens));
    return tokens;
}

std::vector<int32_t> ChatEncoder::prompt(ConversationLine const& line) {
    refuse_only_jinja(line);
    return prompt(line.messages);
}

std::vector<EncodedConversation> ChatEncoder::encode_all(std::vector<ConversationLine> const& lines) {
    std::vector<EncodedConversation> all;
    for (ConversationLine const& line : lines) {
        EncodedConversation& encoded = all.emplace_back();
        try {
            refuse_only_jinja(line);
            encoded.documents.push_back(encode(line.messages));
        } catch (Error const& error) {
            if (error.category() != Category::data) throw;
            encoded.problem = error.what();
        }
    }
    return all;
}

std::string ChatEncoder::template_text() const { return template_.tokenizer_prefix ? "" : as_jinja(template_); }

}  // namespace perigee
