// Text to tokens: `tokenize INPUT... --output PREFIX` writes PREFIX.bin and PREFIX.idx for `train: [{path: PREFIX}]`.
// With --chat CONFIG the inputs are conversations.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "data/indexed_dataset.h"
#include "data/text_documents.h"
#include "data/tokenizer.h"
#include "tools/tokenize/chat.h"

namespace perigee {
namespace {

struct Options {
    std::vector<Path> inputs;
    Path output;
    std::string tokenizer = "bytes";
    std::vector<std::string> suffixes;
    bool append_eod = true;
    TextOptions text;
    std::string chat;
    std::vector<std::string> overrides;
};

void declare(CLI::App& app, Options& options) {
    using Format = TextOptions::Format;
    std::map<std::string, Format> const formats{
        {"auto", Format::automatic}, {"text", Format::text}, {"jsonl", Format::jsonl}};
    app.add_option("inputs", options.inputs, "files, plain or .gz, and folders of them (with all below)")->required();
    app.add_option("-o,--output", options.output, "prefix of the files to write")->required();
    app.add_option("--format", options.text.format, "auto: by name, .jsonl and .ndjson are JSONL; text; jsonl")
        ->transform(CLI::CheckedTransformer(formats).description("(auto, text, jsonl)"));
    app.add_option("--tokenizer", options.tokenizer, "bytes")->capture_default_str();
    app.add_option("--key", options.text.key, "JSONL: the field that holds the text")->capture_default_str();
    app.add_option("--split-on-blank-lines", options.text.blank_lines,
                   "text: this many blank lines in a row start a new document; 0: one document per file")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app.add_option("--suffix", options.suffixes,
                   "of folders, only take names that end so, before any .gz; may be repeated")
        ->allow_extra_args(false);
    app.add_flag("--append-eod,!--no-append-eod", options.append_eod,
                 "end each document with a token of its own (default)");
    auto* const chat = app.add_option("--chat", options.chat,
                                      "the inputs are conversations, tokenized as the chat and data.tokenizer keys of "
                                      "this run's configuration say");
    app.add_option("--set", options.overrides, "with --chat: key=value over the configuration; may be repeated")
        ->needs(chat)
        ->allow_extra_args(false);
    app.add_flag("--strip-html", options.text.strip_html, "keep only the readable text of web pages");
}

/// Megabytes and speed, on a terminal only.
class Progress {
  public:
    void show(size_t file, size_t files, int64_t bytes, int64_t tokens) {
        auto const now = Clock::now();
        if (!terminal_ || now - shown_ < std::chrono::milliseconds(200)) return;
        shown_ = now;
        double const seconds = std::chrono::duration<double>(now - start_).count();
        fmt::print(stderr, "\rfile {} of {}, {:.1f} MB, {:.1f} M tokens/s ", file + 1, files,
                   static_cast<double>(bytes) / 1e6, static_cast<double>(tokens) / 1e6 / seconds);
    }
    void clear() const {
        if (terminal_) fmt::print(stderr, "\r\x1b[K");
    }

  private:
    using Clock = std::chrono::steady_clock;
    bool terminal_ = ::isatty(STDERR_FILENO) == 1;
    Clock::time_point start_ = Clock::now(), shown_ = start_;
};

void tokenize(Options const& options, FileSystem& files) {
    auto const inputs = list_text_files(files, options.inputs, options.suffixes);
    if (!options.chat.empty()) return tokenize_chats({options.chat, options.overrides, inputs, options.output}, files);
    auto const tokenizer = make_tokenizer(files, options.tokenizer);
    if (options.output.has_parent_path()) files.make_directories(options.output.parent_path());
    IndexedDatasetWriter writer(files, options.output, tokenizer->vocab_size());
    Progress progress;
    int64_t done_bytes = 0, text_bytes = 0, empty = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
        int64_t file_bytes = 0;
        for_each_document(files, inputs[i], options.text, [&](std::string_view text, int64_t bytes_read) {
            file_bytes = bytes_read;
            if (text.find_first_not_of(" \t\r\n\f\v") == text.npos) {
                ++empty;
                return;
            }
            auto tokens = tokenizer->encode(text);
            if (options.append_eod) tokens.push_back(tokenizer->end_of_document());
            writer.add_document(tokens);
            text_bytes += static_cast<int64_t>(text.size());
            progress.show(i, inputs.size(), done_bytes + file_bytes, writer.tokens());
        });
        done_bytes += file_bytes;
    }
    progress.clear();
    writer.finish();
    fmt::print(
        "{}.bin, .idx: {} documents, {} tokens ({}, {} tokenizer) from {} files, {:.2f} MB of text; {} empty "
        "documents skipped\n",
        options.output.string(), fmt::group_digits(writer.documents()), fmt::group_digits(writer.tokens()),
        to_string(writer.token_type()), tokenizer->name(), inputs.size(), static_cast<double>(text_bytes) / 1e6, empty);
}

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
    CLI::App app("Turns text into tokens: PREFIX.bin and PREFIX.idx, Megatron's format.", "tokenize");
    perigee::Options options;
    perigee::declare(app, options);
    try {
        app.parse(argc, argv);
        perigee::tokenize(options, *perigee::make_file_system());
    } catch (CLI::ParseError const& error) {
        return app.exit(error) == 0 ? 0 : static_cast<int>(perigee::Category::config);
    } catch (perigee::Error const& error) {
        fmt::print(stderr, "tokenize: {}\n", error.what());
        return error.exit_code();
    } catch (std::exception const& error) {
        fmt::print(stderr, "tokenize: {}\n", error.what());
        return static_cast<int>(perigee::Category::internal);
    }
    return 0;
}
