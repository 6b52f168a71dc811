// Text to tokens: `perigee tokenize INPUT... --output PREFIX` writes PREFIX.bin and PREFIX.idx for `train: [{path:
// PREFIX}]`. With --chat CONFIG the inputs are conversations.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "commands/command.h"
#include "commands/tokenize/chat.h"
#include "commands/tokenize/text.h"

namespace perigee {
namespace {

struct Options {
    std::vector<Path> inputs;
    std::vector<std::string> suffixes;
    TextInputs text;
    std::string chat;
    std::vector<std::string> overrides;
};

void declare(CLI::App& app, Options& options) {
    using Format = TextOptions::Format;
    std::map<std::string, Format> const formats{
        {"auto", Format::automatic}, {"text", Format::text}, {"jsonl", Format::jsonl}};
    app.add_option("inputs", options.inputs, "files, plain or .gz, and folders of them (with all below)")->required();
    app.add_option("-o,--output", options.text.output, "prefix of the files to write")->required();
    app.add_option("--format", options.text.text.format, "auto: by name, .jsonl and .ndjson are JSONL; text; jsonl")
        ->transform(CLI::CheckedTransformer(formats).description("(auto, text, jsonl)"));
    app.add_option("--tokenizer", options.text.tokenizer,
                   "bytes, or the path of a tokenizer.json, of a tokenizer.model or of a folder with one")
        ->capture_default_str();
    app.add_option("--key", options.text.text.key, "JSONL: the field that holds the text")->capture_default_str();
    app.add_option("--split-on-blank-lines", options.text.text.blank_lines,
                   "text: this many blank lines in a row start a new document; 0: one document per file")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app.add_option("--suffix", options.suffixes,
                   "of folders, only take names that end so, before any .gz; may be repeated")
        ->allow_extra_args(false);
    app.add_flag("--append-eod,!--no-append-eod", options.text.append_eod,
                 "end each document with a token of its own (default)");
    app.add_flag("--prepend-bos,!--no-prepend-bos", options.text.prepend_bos,
                 "begin each document with the tokenizer's begin-of-text token, where it has that habit (default)");
    app.add_flag("--special", options.text.special, "names of special tokens in the text are those tokens");
    app.add_option("--threads", options.text.threads, "0: one per core")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    auto* const chat = app.add_option("--chat", options.chat,
                                      "the inputs are conversations, tokenized as the chat and data.tokenizer keys of "
                                      "this run's configuration say");
    app.add_option("--set", options.overrides, "with --chat: key=value over the configuration; may be repeated")
        ->needs(chat)
        ->allow_extra_args(false);
}

void tokenize(Options& options, FileSystem& files) {
    std::vector<Path> skipped;
    options.text.files = list_text_files(files, options.inputs, options.suffixes, skipped);
    if (!skipped.empty()) {
        fmt::print(stderr, "perigee: {} files of the folders hold no text and are skipped:\n", skipped.size());
        for (Path const& path : skipped) fmt::print(stderr, "  {}\n", path.string());
    }
    if (options.chat.empty()) return tokenize_text(options.text, files);
    tokenize_chats({options.chat, options.overrides, options.text.files, options.text.output}, files);
}

}  // namespace
}  // namespace perigee

namespace perigee {

Action declare_tokenize(CLI::App& app) {
    auto const options = std::make_shared<Options>();
    declare(app, *options);
    return [options](FileSystem& files) {
        tokenize(*options, files);
        return 0;
    };
}

}  // namespace perigee
