#include "data/chat_encoder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "data/text_documents.h"
#include "data/text_reader.h"

namespace perigee {

namespace {

constexpr std::string_view kBlanks = " \t\r\n\f\v";

std::string_view trimmed(std::string_view text) {
    size_t const begin = text.find_first_not_of(kBlanks);
    if (begin == text.npos) return {};
    return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

/// Where the leading system messages end.
size_t instructions(std::vector<Message> const& messages) {
    size_t end = 0;
    while (end < messages.size() && messages[end].role == kInstructs) ++end;
    return end;
}

void append(std::vector<int32_t> const& tokens, float weight, EncodedChat& chat) {
    chat.tokens.insert(chat.tokens.end(), tokens.begin(), tokens.end());
    chat.weights.insert(chat.weights.end(), tokens.size(), weight);
}

/// The first token of a document is no target.
bool carries_loss(EncodedChat const& chat) {
    return !chat.weights.empty() &&
           std::any_of(chat.weights.begin() + 1, chat.weights.end(), [](float weight) { return weight > 0; });
}

}  // namespace

ChatCounts& ChatCounts::operator+=(ChatCounts const& other) {
    whole += other.whole;
    shortened += other.shortened;
    too_long += other.too_long;
    without_loss += other.without_loss;
    malformed += other.malformed;
    if (first_malformed.empty()) first_malformed = other.first_malformed;
    return *this;
}

ChatEncoder::ChatEncoder(ChatOptions const& options, int64_t max_tokens, Tokenizer const& tokenizer)
    : options_(options), template_(chat_template(options)), max_tokens_(max_tokens), tokenizer_(&tokenizer) {
    PERIGEE_CHECK(max_tokens > 0, "conversations of {} tokens", max_tokens);
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
    return tokenizer_->encode_with_special(template_.stop);
}

ChatEncoder::Piece ChatEncoder::piece(Message const& message) const {
    ChatRole const& r = role(message.role);
    Piece piece{.before = tokenizer_->encode_with_special(r.prefix),
                .said = tokenizer_->encode(template_.trim ? trimmed(message.content) : message.content),
                .rest = {}};
    size_t end = 0;
    if (r.role == kAnswers) {
        end = template_.stop.empty() ? r.suffix.size() : r.suffix.find(template_.stop);
        std::ranges::copy(tokenizer_->encode_with_special(r.suffix.substr(0, end)), std::back_inserter(piece.said));
        std::ranges::copy(stop(), std::back_inserter(piece.said));
        end += template_.stop.size();
    }
    piece.rest = tokenizer_->encode_with_special(r.suffix.substr(end));
    return piece;
}

float ChatEncoder::weight_of(std::vector<Message> const& messages, size_t index) const {
    auto const is_answer = [](Message const& message) { return message.role == kAnswers; };
    bool const counts =
        options_.loss == ChatLoss::all ||
        (is_answer(messages[index]) &&
         (options_.loss == ChatLoss::assistant ||
          std::none_of(messages.begin() + static_cast<std::ptrdiff_t>(index) + 1, messages.end(), is_answer)));
    return counts ? static_cast<float>(messages[index].weight) : 0.0f;
}

EncodedChat ChatEncoder::encode_message(std::vector<Message> const& messages, size_t index) const {
    Piece const p = piece(messages[index]);
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
    for (size_t i = 0; i < messages.size(); ++i) {
        encoded.push_back(encode_message(messages, i));
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
    for (Message const& message : messages) {
        Piece const p = piece(message);
        for (auto const* part : {&p.before, &p.said, &p.rest}) std::ranges::copy(*part, std::back_inserter(tokens));
    }
    std::ranges::copy(tokenizer_->encode_with_special(role(kAnswers).prefix), std::back_inserter(tokens));
    return tokens;
}

namespace {

/// Null where the line cannot be taught from, with the reason.
std::optional<EncodedChat> encode_line(std::string_view text, ChatEncoder const& encoder, std::string& problem) {
    ConversationLine const line = parse_conversation(text);
    problem = line.problem;
    if (!problem.empty()) return std::nullopt;
    try {
        return encoder.encode(line.messages);
    } catch (Error const& error) {
        if (error.category() != Category::data) throw;
        problem = error.what();
        return std::nullopt;
    }
}

}  // namespace

ChatCounts for_each_chat(FileSystem& files, Path const& path, ChatOptions const& options, ChatEncoder const& encoder,
                         UseChat const& use) {
    using Fate = EncodedChat::Fate;
    TextReader reader(files, path);
    ChatCounts counts;
    std::string text, problem;
    while (reader.read_line(text, kMaxJsonLineBytes)) {
        if (text.find_first_not_of(kBlanks) == text.npos) continue;
        auto const where = [&] { return fmt::format("{}:{}", path.string(), reader.line_number()); };
        auto const chat = encode_line(text, encoder, problem);
        if (!chat) {
            if (options.malformed == Malformed::stop) fail(Category::data, "{}: {}", where(), problem);
            if (counts.malformed++ == 0) counts.first_malformed = fmt::format("{}: {}", where(), problem);
            continue;
        }
        if (chat->fate == Fate::too_long && options.too_long == TooLong::stop)
            fail(Category::data, "{}: {} tokens; chat.max_tokens allows {}", where(), chat->full_tokens,
                 encoder.max_tokens());
        counts.whole += chat->fate == Fate::whole;
        counts.shortened += chat->fate == Fate::shortened;
        counts.too_long += chat->fate == Fate::too_long;
        counts.without_loss += chat->fate == Fate::without_loss;
        if (!chat->tokens.empty()) use(*chat, reader.bytes_read());
    }
    return counts;
}

}  // namespace perigee
