#include "commands/tokenize/chat.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/printable.h"
#include "commands/tokenize/journal.h"
#include "commands/tokenize/meter.h"
#include "config/config.h"
#include "data/chat_documents.h"
#include "data/chat_record.h"
#include "data/indexed_dataset.h"
#include "data/jinja_template.h"
#include "data/tokenizer_record.h"
#include "train/described.h"

namespace perigee {

namespace {

RunOptions load(ChatInputs const& inputs) {
    RunOptions options = load_config(inputs.config, inputs.overrides);
    if (inputs.tokenizer) options.data.tokenizer = *inputs.tokenizer;
    if (auto const found = problems(options.chat); !found.empty())
        fail(Category::config, "{}: {}", inputs.config, fmt::join(found, "\n"));
    if (options.chat.max_tokens == 0) options.chat.max_tokens = options.data.sequence_length + 1;
    options.chat.jinja.date = day_of(options.chat.jinja);  // the same for all, also for a run that goes on tomorrow
    return options;
}

std::string describe_inputs(ChatInputs const& inputs, RunOptions options, std::string const& chat_template,
                            FileSystem& files) {
    if (chat_template.find("strftime_now") == std::string::npos) options.chat.jinja.date = "";
    return fmt::format("chat {} {} {} {}", options_text(options), chat_template,
                       tokenizer_fingerprint(files, options.data.tokenizer), fingerprint_of(files, inputs.files));
}

std::string template_name(RunOptions const& options, FileSystem& files) {
    JinjaOptions const& jinja = options.chat.jinja;
    switch (options.chat.format) {
        case ChatFormat::automatic: {
            auto const found = find_jinja_template(files, options.data.tokenizer, jinja);
            PERIGEE_CHECK(found, "a template that is gone");
            return found->source + (jinja.name.empty() || !jinja.file.empty() ? "" : " (" + jinja.name + ")");
        }
        case ChatFormat::none:
            return "none";
        case ChatFormat::chatml:
            return "chatml";
        case ChatFormat::llama3:
            return "llama3";
        case ChatFormat::custom:
            return "custom";
    }
    return "";
}

/// Decides `automatic`.
RunOptions decided(RunOptions options, Tokenizer const& tokenizer, FileSystem& files) {
    ChatFormat const wanted = options.chat.format;
    options.chat = resolved(files, options.data.tokenizer, options.chat);
    if (options.chat.format != wanted)
        log::warn(
            "chat.template: auto found no chat template beside the tokenizer {}, so none is used: messages follow one "
            "another, and nothing says which role they have. Set chat.template to chatml, llama3 or custom, or "
            "chat.jinja.file to a template",
            tokenizer.name());
    return options;
}

/// The numbers of `counts`, to write down and to read again.
std::vector<int64_t*> numbers_of(ChatCounts& counts) {
    std::vector<int64_t*> all{&counts.whole,     &counts.shortened, &counts.too_long,     &counts.without_loss,
                              &counts.malformed, &counts.rewritten, &counts.conversations};
    for (int64_t& count : counts.formats) all.push_back(&count);
    all.push_back(&counts.without_reasoning);
    return all;
}

/// All conversations after those of an earlier run.
class ChatRun {
  public:
    ChatRun(ChatInputs const& inputs, RunOptions const& options, FileSystem& files)
        : inputs_(inputs),
          files_(files),
          tokenizer_(make_tokenizer(files, options.data.tokenizer)),
          options_(decided(options, *tokenizer_, files)),
          template_name_(template_name(options_, files)),
          encoder_(make_conversation_encoder(files, options_.chat, options_.data.tokenizer, options_.chat.max_tokens,
                                             *tokenizer_)),
          journal_(files, inputs.output, describe_inputs(inputs, options_, encoder_->template_text(), files),
                   inputs.seconds),
          writer_(files, inputs.output, tokenizer_->vocab_size(), /*with_weights=*/true, journal_.writer()),
          meter_(files, inputs.files, inputs.seconds),
          earlier_(writer_.tokens()) {
        if (journal_.found()) go_on(nlohmann::json::parse(journal_.found()->place));
    }

    void read_all() {
        for (size_t file = 0; file < file_; ++file) done_bytes_ += files_.file_size(inputs_.files[file]);
        for (; file_ < inputs_.files.size(); ++file_) {
            counts_ += for_each_chat(
                files_, inputs_.files[file_], options_.chat, *encoder_,
                [&](EncodedChat const& chat, ChatPlace const& place) { add(chat, place); }, std::exchange(records_, 0));
            done_bytes_ += files_.file_size(inputs_.files[file_]);
        }
        meter_.clear();
        if (writer_.tokens() == 0) {
            std::string const why = fmt::format("{}", fmt::join(told_of_counts(), "; "));
            fail(Category::data, "{}: no conversation is left to write{}{}", inputs_.output.string(),
                 why.empty() ? "" : ": ", why);
        }
        writer_.finish([this] { journal_.finish(); }, [this] { write_records(); });
    }
    void write_records() {
        write_tokenizer_record(files_, inputs_.output, *tokenizer_, options_.data.tokenizer, writer_.tokens());
        if (std::string const text = encoder_->template_text(); !text.empty())
            write_chat_record(files_, inputs_.output,
                              {text, options_.data.tokenizer, conversations() < writer_.documents() ? continued_ : "",
                               encoder_->stop()});
    }

    void print_summary() {
        double const share = 100 * static_cast<double>(loss_tokens_) / static_cast<double>(writer_.tokens());
        print_printable(
            "{}.bin, .idx: {} conversations{}, {} tokens ({}, {} tokenizer, template {}), of which {:.2f}% carry "
            "loss\n",
            inputs_.output.string(), fmt::group_digits(conversations()),
            conversations() == writer_.documents()
                ? ""
                : fmt::format(" in {} documents", fmt::group_digits(writer_.documents())),
            fmt::group_digits(writer_.tokens()), to_string(writer_.token_type()), tokenizer_->name(), template_name_,
            share);
        for (std::string const& told : told_of_counts()) print_printable("  {}\n", told);
        print_formats();
    }

  private:
    int64_t conversations() const { return std::ranges::count(continued_, '0'); }
    char const* rewritten_what() const {
        return options_.chat.jinja.rewritten == Rewritten::split
                   ? "answers that later turns write otherwise, in documents of their own"
                   : "answers that later turns write otherwise, without loss";
    }
    /// What became of conversations that are not written as they are.
    std::vector<std::string> told_of_counts() const {
        std::vector<std::string> told;
        std::string without_loss = "without a token that carries loss, dropped";
        if (!counts_.unanswered_roles.empty())
            without_loss += fmt::format(" (some have no message of role {}; roles found: {})", kAnswers,
                                        fmt::join(counts_.unanswered_roles, ", "));
        for (auto const& [count, what] :
             {std::pair{counts_.shortened, "longer than chat.max_tokens, shortened"},
              {counts_.too_long, "longer than chat.max_tokens, dropped"},
              {counts_.without_loss, without_loss.c_str()},
              {counts_.rewritten, rewritten_what()},
              {counts_.without_reasoning, "answers without their reasoning, which the template leaves out"},
              {counts_.malformed, "malformed, skipped"}})
            if (count > 0) told.push_back(fmt::format("{} {}", fmt::group_digits(count), what));
        if (counts_.malformed > 0) told.push_back("the first malformed one is " + counts_.first_malformed);
        return told;
    }
    /// Where not all lines are messages, or a template tells the day.
    void print_formats() const {
        for (size_t i = 0; i < counts_.formats.size(); ++i)
            if (auto const format = static_cast<RecordFormat>(i);
                counts_.formats[i] > 0 && format != RecordFormat::messages && format != RecordFormat::prompt_completion)
                print_printable("  {} lines read as {}\n", fmt::group_digits(counts_.formats[i]), to_string(format));
        if (encoder_->template_text().find("strftime_now") != std::string::npos)
            print_printable("  the template is told that the day is {} (chat.jinja.date)\n", options_.chat.jinja.date);
    }

    void add(EncodedChat const& chat, ChatPlace const& place) {
        if (skipped_ < 0) skipped_ = journal_.found() ? done_bytes_ + place.bytes : 0;
        writer_.add_document(chat.tokens, chat.weights);
        continued_ += place.continues ? '1' : '0';
        loss_tokens_ += std::ranges::count_if(chat.weights, [](float weight) { return weight > 0; });
        if (!place.is_end) return;
        meter_.show(done_bytes_ + place.bytes, skipped_, writer_.tokens() - earlier_);
        journal_.tick(writer_, [&] { return written(place); });
    }

    std::string written(ChatPlace const& place) const {
        ChatCounts counts = counts_;
        counts += *place.counts;
        nlohmann::json numbers = nlohmann::json::array();
        for (int64_t const* const number : numbers_of(counts)) numbers.push_back(*number);
        return nlohmann::json{{"file", file_},
                              {"records", place.records},
                              {"loss_tokens", loss_tokens_},
                              {"continued", conversations() < std::ssize(continued_) ? continued_ : ""},
                              {"counts", numbers},
                              {"unanswered_roles", counts.unanswered_roles},
                              {"first_malformed", counts.first_malformed}}
            .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }
    void go_on(nlohmann::json const& place) {
        file_ = place.at("file");
        records_ = place.at("records");
        loss_tokens_ = place.at("loss_tokens");
        continued_ = place.value("continued", "");
        continued_.resize(static_cast<size_t>(writer_.documents()), '0');  // of an older program
        counts_.first_malformed = place.at("first_malformed");
        counts_.unanswered_roles = place.value("unanswered_roles", std::set<std::string>{});
        size_t i = 0;
        nlohmann::json const& counts = place.at("counts");  // of an earlier program: without the last ones
        for (int64_t* const number : numbers_of(counts_))
            *number = i < counts.size() ? counts.at(i++).get<int64_t>() : 0;
    }

    ChatInputs const& inputs_;
    FileSystem& files_;
    std::unique_ptr<Tokenizer> tokenizer_;
    RunOptions options_;
    std::string template_name_;
    std::unique_ptr<ConversationEncoder> encoder_;
    Journal journal_;
    IndexedDatasetWriter writer_;
    Meter meter_;
    ChatCounts counts_;
    int64_t earlier_;  ///< tokens of an earlier run
    int64_t loss_tokens_ = 0, done_bytes_ = 0, skipped_ = -1;
    std::string continued_;  ///< as in a ChatRecord
    size_t file_ = 0;
    int64_t records_ = 0;  ///< of that file, read by an earlier run
};

}  // namespace

void tokenize_chats(ChatInputs const& inputs, FileSystem& files) {
    RunOptions const options = load(inputs);
    if (inputs.output.has_parent_path()) files.make_directories(inputs.output.parent_path());
    ChatRun run(inputs, options, files);
    run.read_all();
    run.print_summary();
}

}  // namespace perigee
