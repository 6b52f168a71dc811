#include "commands/tokenize/text.h"

#include <chrono>
#include <deque>
#include <future>
#include <thread>

#include "base/printable.h"
#include "data/indexed_dataset.h"
#include "data/tokenizer.h"
#include "train/progress.h"

namespace perigee {

namespace {

constexpr size_t kBatchBytes = size_t{1} << 20;

struct Document {
    std::string text;
    Path const* file;
    int64_t number;  ///< in the file, from 1
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
        pending_.push_back(std::async(std::launch::async, [this, batch = std::move(batch_)] { return encode(batch); }));
        batch_.clear();
        batch_bytes_ = 0;
    }
    void write_oldest() {
        Tokens const documents = pending_.front().get();
        pending_.pop_front();
        for (auto const& tokens : documents) writer_.add_document(tokens);
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
                        fmt::format("{}: document {}: {}", document.file->string(), document.number, error.what()));
        }
    }

    TextInputs const& inputs_;
    Tokenizer const& tokenizer_;
    IndexedDatasetWriter& writer_;
    size_t threads_;
    Documents batch_;
    size_t batch_bytes_ = 0;
    std::deque<std::future<Tokens>> pending_;
};

/// Bytes read of all files, and tokens per second.
class Meter {
  public:
    Meter(std::vector<Path> const& paths, FileSystem& files) {
        for (Path const& path : paths) all_bytes_ += files.file_size(path);
    }
    double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
    void show(int64_t bytes, int64_t tokens) {
        double const left =
            seconds() / static_cast<double>(std::max<int64_t>(1, bytes)) * static_cast<double>(all_bytes_ - bytes);
        bar_.update(bytes, all_bytes_, left,
                    fmt::format("{:.2f} M tokens/s", static_cast<double>(tokens) / 1e6 / seconds()));
    }
    void clear() { bar_.clear(); }

  private:
    Progress bar_{true};
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
    int64_t all_bytes_ = 0;
};

}  // namespace

void tokenize_text(TextInputs const& inputs, FileSystem& files) {
    auto const tokenizer = make_tokenizer(files, inputs.tokenizer);
    if (inputs.append_eod) (void)tokenizer->end_of_document();  // says now, not after hours, that there is none
    if (inputs.output.has_parent_path()) files.make_directories(inputs.output.parent_path());
    IndexedDatasetWriter writer(files, inputs.output, tokenizer->vocab_size());
    Pipeline pipeline(inputs, *tokenizer, writer);
    Meter meter(inputs.files, files);
    int64_t done_bytes = 0, text_bytes = 0, empty = 0;
    for (Path const& path : inputs.files) {
        int64_t number = 0;
        for_each_document(files, path, inputs.text, [&](std::string_view text, int64_t bytes_read) {
            ++number;
            if (text.find_first_not_of(" \t\r\n\f\v") == text.npos) {
                ++empty;
                return;
            }
            text_bytes += static_cast<int64_t>(text.size());
            if (pipeline.add({std::string(text), &path, number})) meter.show(done_bytes + bytes_read, writer.tokens());
        });
        done_bytes += files.file_size(path);
    }
    pipeline.finish();
    meter.clear();
    writer.finish();
    print_printable(
        "{}.bin, .idx: {} documents, {} tokens ({}, {} tokenizer) from {} files, {:.2f} MB of text; {} empty "
        "documents skipped; {:.2f} M tokens/s on {} threads\n",
        inputs.output.string(), fmt::group_digits(writer.documents()), fmt::group_digits(writer.tokens()),
        to_string(writer.token_type()), tokenizer->name(), inputs.files.size(), static_cast<double>(text_bytes) / 1e6,
        empty, static_cast<double>(writer.tokens()) / 1e6 / meter.seconds(), pipeline.threads());
}

}  // namespace perigee
