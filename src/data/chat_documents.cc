#include "data/chat_documents.h"

#include <algorithm>
#include <memory>

#include "data/parquet.h"
#include "data/text_documents.h"

namespace perigee {

namespace {

constexpr std::string_view kBlanks = " \t\r\n\f\v";
constexpr size_t kBatchBytes = size_t{1} << 20, kBatchLines = 256, kMostRoles = 8;

/// Lines of JSONL or rows of Parquet.
class Records {
  public:
    Records(FileSystem& files, Path const& path, int64_t skip) : path_(path) {
        if (is_parquet(path)) {
            parquet_ = std::make_unique<ParquetReader>(files, path, ParquetReader::Kind::records, "", skip);
            return;
        }
        lines_ = std::make_unique<TextReader>(files, path);
        refuse_binary(*lines_);
        refuse_array(*lines_);
        std::string line;
        while (lines_->line_number() < skip && lines_->read_line(line, kMaxJsonLineBytes)) {
        }
    }
    bool next(std::string& line) {
        if (lines_) return lines_->read_line(line, kMaxJsonLineBytes);
        std::string_view row;
        if (!parquet_->next(row)) return false;
        line = row;
        return true;
    }
    int64_t number() const { return lines_ ? lines_->line_number() : parquet_->row(); }
    int64_t bytes_read() const { return lines_ ? lines_->bytes_read() : parquet_->bytes_read(); }
    std::string where(int64_t number) const {
        return fmt::format("{}:{}{}", path_.string(), lines_ ? "" : "row ", number);
    }

  private:
    Path path_;
    std::unique_ptr<TextReader> lines_;
    std::unique_ptr<ParquetReader> parquet_;
};

/// Lines that are encoded together.
class ChatBatch {
  public:
    ChatBatch(Records const& records, ChatOptions const& options, ConversationEncoder& encoder, UseChat const& use)
        : records_(records), options_(options), encoder_(encoder), use_(use) {}

    ChatCounts counts;

    /// Reads `line`; true when it is time to finish().
    bool add(std::string const& line) {
        ConversationLine read = parse_conversation(line, options_.records);
        places_.push_back({.records = records_.number(), .bytes = records_.bytes_read(), .counts = &counts});
        problems_.push_back(read.problem);
        if (read.problem.empty()) lines_.push_back(std::move(read));
        bytes_ += line.size();
        return bytes_ >= kBatchBytes || problems_.size() >= kBatchLines;
    }
    void finish() {
        // With `stop`, nothing after the first bad line counts, and what comes before it does.
        auto const encoded = encoder_.encode_all(lines_);
        size_t next = 0;
        for (size_t i = 0; i < problems_.size(); ++i) {
            if (!problems_[i].empty()) {
                skip(i, problems_[i]);
                continue;
            }
            ++counts.formats.at(static_cast<size_t>(lines_[next].format));
            hand_out(i, lines_[next], encoded[next]);
            ++next;
        }
        lines_.clear();
        problems_.clear();
        places_.clear();
        bytes_ = 0;
    }

  private:
    void skip(size_t i, std::string const& problem) {
        std::string const where = records_.where(places_[i].records);
        if (options_.malformed == Malformed::stop) fail(Category::data, "{}: {}", where, problem);
        if (counts.malformed++ == 0) counts.first_malformed = fmt::format("{}: {}", where, problem);
    }
    void note_roles(ConversationLine const& line) {
        if (options_.loss == ChatLoss::all) return;
        if (std::ranges::any_of(line.messages, [](Message const& message) { return message.role == kAnswers; })) return;
        for (Message const& message : line.messages)
            if (counts.unanswered_roles.size() < kMostRoles)
                counts.unanswered_roles.insert(fmt::format("{:.40}", message.role));
    }
    void hand_out(size_t i, ConversationLine const& line, EncodedConversation const& encoded) {
        using Fate = EncodedChat::Fate;
        if (!encoded.problem.empty()) return skip(i, encoded.problem);
        ++counts.conversations;
        counts.rewritten += encoded.rewritten;
        counts.without_reasoning += encoded.without_reasoning;
        for (EncodedChat const& chat : encoded.documents) {
            if (chat.fate == Fate::too_long && options_.too_long == TooLong::stop)
                fail(Category::data, "{}: {} tokens; chat.max_tokens allows {}", records_.where(places_[i].records),
                     chat.full_tokens, encoder_.max_tokens());
            counts.whole += chat.fate == Fate::whole;
            counts.shortened += chat.fate == Fate::shortened;
            counts.too_long += chat.fate == Fate::too_long;
            counts.without_loss += chat.fate == Fate::without_loss;
            if (chat.fate == Fate::without_loss) note_roles(line);
            places_[i].is_end = &chat == &encoded.documents.back();
            if (chat.tokens.empty()) continue;
            use_(chat, places_[i]);
            places_[i].continues = true;
        }
    }

    Records const& records_;
    ChatOptions const& options_;
    ConversationEncoder& encoder_;
    UseChat const& use_;
    std::vector<ConversationLine> lines_;  ///< without problems
    std::vector<std::string> problems_;    ///< of each line read, mostly empty
    std::vector<ChatPlace> places_;        ///< of each line read
    size_t bytes_ = 0;
};

}  // namespace

ChatCounts& ChatCounts::operator+=(ChatCounts const& other) {
    whole += other.whole;
    shortened += other.shortened;
    too_long += other.too_long;
    without_loss += other.without_loss;
    malformed += other.malformed;
    rewritten += other.rewritten;
    without_reasoning += other.without_reasoning;
    conversations += other.conversations;
    for (size_t i = 0; i < formats.size(); ++i) formats[i] += other.formats[i];
    unanswered_roles.insert(other.unanswered_roles.begin(), other.unanswered_roles.end());
    if (first_malformed.empty()) first_malformed = other.first_malformed;
    return *this;
}

ChatCounts for_each_chat(FileSystem& files, Path const& path, ChatOptions const& options, ConversationEncoder& encoder,
                         UseChat const& use, int64_t skip) {
    Records records(files, path, skip);
    ChatBatch batch(records, options, encoder, use);
    std::string line;
    while (records.next(line)) {
        if (line.find_first_not_of(kBlanks) == line.npos) continue;
        if (batch.add(line)) batch.finish();
    }
    batch.finish();
    return std::move(batch.counts);
}

}  // namespace perigee
