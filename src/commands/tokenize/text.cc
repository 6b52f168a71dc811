#include "commands/tokenize/text.h"

#include <algorithm>
#include <deque>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/printable.h"
#include "commands/tokenize/journal.h"
#include "commands/tokenize/meter.h"
#include "data/indexed_dataset.h"
#include "data/tokenizer.h"
#include "data/tokenizer_record.h"

namespace perigee {

namespace {

constexpr size_t kBatchBytes = size_t{1} << 20;

/// What was read up to and with a document.
struct Place {
    size_t file = 0;
    int64_t number = 0;  ///< of documents of the file
    int64_t text_bytes = 0, empty = 0;
};

struct Document {
    std::string text;
    Place place;
};
using Documents = std::vector<Document>;
using Tokens = std::vector<std::vector<int32_t>>;

/// Batches of documents on their way: encoded side by side, written in the order in which they came.
class Pipeline {
  public:
    Pipeline(TextInputs const& inputs, Tokenizer const& tokenizer, IndexedDatasetWriter& writer)
        : inputs_(inputs), tokenizer_(tokenizer), writer_(writer) {
        threads_ = inputs.threads > 0 ? static_cast<size_t>(inputs.threads)
                                      : std::max<size_t>(1, std::thread::hardware_concurrency());
    }

    size_t threads() const { return threads_; }

    /// After the last document that was written.
    Place const& written() const { return written_; }

    /// True when a batch has been written.
    bool add(Document document) {
        batch_bytes_ += document.text.size();
        batch_.push_back(std::move(document));
        if (batch_bytes_ < kBatchBytes) return false;
        send();
        if (pending_.size() < threads_) return false;
        write_oldest();
        return true;
    }
    void finish() {
        send();
        while (!pending_.empty()) write_oldest();
    }

  private:
    void send() {
        if (batch_.empty()) return;
        places_.push_back(batch_.back().place);
        pending_.push_back(std::async(std::launch::async, [this, batch = std::move(batch_)] { return encode(batch); }));
        batch_.clear();
        batch_bytes_ = 0;
    }
    void write_oldest() {
        Tokens const documents = pending_.front().get();
        pending_.pop_front();
        for (auto const& tokens : documents) writer_.add_document(tokens);
        written_ = places_.front();
        places_.pop_front();
    }
    Tokens encode(Documents const& batch) const {
        Tokens encoded;
        for (Document const& document : batch) {
            auto ids = encode(document);
            if (inputs_.prepend_bos) {
                auto const prefix = tokenizer_.prefix();
                ids.insert(ids.begin(), prefix.begin(), prefix.end());
            }
            if (inputs_.append_eod) ids.push_back(tokenizer_.end_of_document());
            encoded.push_back(std::move(ids));
        }
        return encoded;
    }

    std::vector<int32_t> encode(Document const& document) const {
        try {
            return inputs_.special ? tokenizer_.encode_with_special(document.text) : tokenizer_.encode(document.text);
        } catch (Error const& error) {
            throw Error(error.category(),
                        fmt::format("{}: document {}: {}", inputs_.files[document.place.file].string(),
                                    document.place.number, error.what()));
        }
    }

    TextInputs const& inputs_;
    Tokenizer const& tokenizer_;
    IndexedDatasetWriter& writer_;
    size_t threads_;
    Documents batch_;
    size_t batch_bytes_ = 0;
    std::deque<std::future<Tokens>> pending_;
    std::deque<Place> places_;  ///< the last one of each pending batch
    Place written_;
};

std::string describe_inputs(TextInputs const& inputs, FileSystem& files) {
    return fmt::format("text 2 {} {} {} {} {} {} {} {}", static_cast<int>(inputs.text.format), inputs.text.key,
                       inputs.text.blank_lines, inputs.special, inputs.prepend_bos, inputs.append_eod,
                       tokenizer_fingerprint(files, inputs.tokenizer), fingerprint_of(files, inputs.files));
}

std::string to_json(Place const& place) {
    return nlohmann::json{place.file, place.number, place.text_bytes, place.empty}.dump();
}
Place place_of(Journal const& journal) {
    if (!journal.found()) return {};
    auto const json = nlohmann::json::parse(journal.found()->place);
    return {json.at(0), json.at(1), json.at(2), json.at(3)};
}

/// All documents after the place where an earlier run ended.
class TextRun {
  public:
    TextRun(TextInputs const& inputs, Tokenizer const& tokenizer, FileSystem& files)
        : inputs_(inputs),
          tokenizer_(tokenizer),
          files_(files),
          journal_(files, inputs.output, describe_inputs(inputs, files), inputs.seconds),
          writer_(files, inputs.output, tokenizer.vocab_size(), /*with_weights=*/false, journal_.writer()),
          pipeline_(inputs, tokenizer, writer_),
          meter_(files, inputs.files, inputs.seconds),
          place_(place_of(journal_)),
          earlier_(writer_.tokens()) {}

    void read_all() {
        size_t const first = place_.file;
        for (size_t file = 0; file < first; ++file) done_bytes_ += files_.file_size(inputs_.files[file]);
        for (size_t file = first; file < inputs_.files.size(); ++file) {
            place_.number = file == first ? place_.number : 0;
            place_.file = file;
            for_each_document(
                files_, inputs_.files[file], inputs_.text,
                [&](std::string_view text, int64_t bytes_read) { add(text, bytes_read); }, place_.number);
            done_bytes_ += files_.file_size(inputs_.files[file]);
        }
        pipeline_.finish();
        meter_.clear();
        writer_.finish([this] { journal_.finish(); },
                       [this] {
                           write_tokenizer_record(files_, inputs_.output, tokenizer_, inputs_.tokenizer,
                                                  writer_.tokens());
                       });
    }

    void print_summary() const {
        print_printable(
            "{}.bin, .idx: {} documents, {} tokens ({}, {} tokenizer) from {} files, {:.2f} MB of text; {} empty "
            "documents skipped; {:.2f} M tokens/s on {} threads\n",
            inputs_.output.string(), fmt::group_digits(writer_.documents()), fmt::group_digits(writer_.tokens()),
            to_string(writer_.token_type()), tokenizer_.name(), inputs_.files.size(),
            static_cast<double>(place_.text_bytes) / 1e6, place_.empty,
            static_cast<double>(writer_.tokens() - earlier_) / 1e6 / meter_.seconds(), pipeline_.threads());
    }

  private:
    void add(std::string_view text, int64_t bytes_read) {
        if (skipped_ < 0) skipped_ = journal_.found() ? done_bytes_ + bytes_read : 0;
        ++place_.number;
        if (text.find_first_not_of(" \t\r\n\f\v") == text.npos) {
            ++place_.empty;
            return;
        }
        place_.text_bytes += static_cast<int64_t>(text.size());
        if (!pipeline_.add({std::string(text), place_})) return;
        meter_.show(done_bytes_ + bytes_read, skipped_, writer_.tokens() - earlier_);
        journal_.tick(writer_, [&] { return to_json(pipeline_.written()); });
    }

    TextInputs const& inputs_;
    Tokenizer const& tokenizer_;
    FileSystem& files_;
    Journal journal_;
    IndexedDatasetWriter writer_;
    Pipeline pipeline_;
    Meter meter_;
    Place place_;
    int64_t earlier_;  ///< tokens of an earlier run
    int64_t done_bytes_ = 0, skipped_ = -1;
};

}  // namespace

void tokenize_text(TextInputs const& inputs, FileSystem& files) {
    auto const tokenizer = make_tokenizer(files, inputs.tokenizer);
    if (inputs.append_eod) (void)tokenizer->end_of_document();  // says now, not after hours, that there is none
    if (inputs.output.has_parent_path()) files.make_directories(inputs.output.parent_path());
    TextRun run(inputs, *tokenizer, files);
    run.read_all();
    run.print_summary();
}

}  // namespace perigee
