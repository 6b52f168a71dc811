// Text to tokens: `perigee tokenize INPUT... --output PREFIX` writes PREFIX.bin and PREFIX.idx for `train: [{path:
// PREFIX}]`. With --chat CONFIG the inputs are conversations.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/printable.h"
#include "commands/command.h"
#include "commands/tokenize/chat.h"
#include "commands/tokenize/mix.h"
#include "commands/tokenize/text.h"

namespace perigee {
namespace {

struct TokenizeOptions {
    std::vector<Path> inputs;
    std::vector<std::string> mix, suffixes;
    TextInputs text;
    CLI::Option const* tokenizer = nullptr;
    std::string chat;
    std::vector<std::string> overrides;
};

void declare(CLI::App& app, TokenizeOptions& options) {
    using Format = TextOptions::Format;
    std::map<std::string, Format> const formats{
        {"auto", Format::automatic}, {"text", Format::text}, {"jsonl", Format::jsonl}};
    app.add_option(
        "inputs", options.inputs,
        "files (text, JSONL, plain or .gz or .zst, and .parquet), folders of them (with all below), and patterns "
        "in quotes (*, ?, [...], and ** for any folders)");
    app.add_option(
           "--mix", options.mix,
           "NAME=WEIGHT:INPUT instead of inputs, may be repeated: each name becomes a data set, OUTPUT_NAME, and "
           "the override that trains on them by their weights is printed; NAME=INPUT adds to it")
        ->allow_extra_args(false);
    app.add_option("-o,--output", options.text.output, "prefix of the files to write")->required();
    app.add_option("--format", options.text.text.format, "auto: by name, .jsonl and .ndjson are JSONL; text; jsonl")
        ->transform(CLI::CheckedTransformer(formats).description("(auto, text, jsonl)"));
    options.tokenizer = app.add_option("--tokenizer", options.text.tokenizer,
                                       "bytes, or the path of a tokenizer.json, of a tokenizer.model or of a folder "
                                       "with one; with --chat, instead of the configuration's data.tokenizer")
                            ->capture_default_str();
    app.add_option("--key", options.text.text.key, "JSONL: the field that holds the text; Parquet: the column")
        ->capture_default_str();
    app.add_option("--split-on-blank-lines", options.text.text.blank_lines,
                   "text: this many blank lines in a row start a new document; 0: one document per file")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app.add_option("--suffix", options.suffixes,
                   "of folders, only take names that end so, before any .gz or .zst; may be repeated")
        ->allow_extra_args(false);
    app.add_flag("--append-eod,!--no-append-eod", options.text.append_eod,
                 "end each document with a token of its own (default)");
    app.add_flag("--prepend-bos,!--no-prepend-bos", options.text.prepend_bos,
                 "begin each document with the tokenizer's begin-of-text token, where it has that habit (default)");
    app.add_flag("--special", options.text.special, "names of special tokens in the text are those tokens");
    app.add_option("--threads", options.text.threads, "0: one per core")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app.add_option(
           "--save-every", options.text.seconds,
           "seconds between states that the same command goes on from if this one is killed, and between lines of "
           "progress where there is no terminal")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    auto* const chat = app.add_option("--chat", options.chat,
                                      "the inputs are conversations, tokenized as the chat and data.tokenizer keys of "
                                      "this run's configuration say");
    for (char const* const name :
         {"--key", "--format", "--append-eod", "--prepend-bos", "--special", "--split-on-blank-lines"})
        chat->excludes(name);
    app.add_option("--set", options.overrides, "with --chat: key=value over the configuration; may be repeated")
        ->needs(chat)
        ->allow_extra_args(false);
}

/// One data set of `inputs`.
void tokenize_set(TokenizeOptions options, std::vector<Path> const& inputs, Path const& output, FileSystem& files) {
    std::vector<SkippedFile> skipped;
    options.text.files = list_text_files(files, inputs, options.suffixes, skipped);
    options.text.output = output;
    if (!skipped.empty()) {
        fmt::print(stderr, "perigee: {} files hold no text and are skipped:\n", skipped.size());
        for (auto const& [path, reason] : skipped)
            fmt::print(stderr, "  {}: {}\n", printable_name(path.string()), printable_name(reason));
    }
    if (options.text.files.empty()) fail(Category::data, "no files to read");
    if (options.chat.empty()) {
        for (Path const& path : options.text.files) refuse_unclear_json(path, options.text.text);
        return tokenize_text(options.text, files);
    }
    std::optional<std::string> tokenizer;
    if (options.tokenizer->count() > 0) tokenizer = options.text.tokenizer;
    tokenize_chats({options.chat, tokenizer, options.overrides, options.text.files, output, options.text.seconds},
                   files);
}

void tokenize(TokenizeOptions const& options, FileSystem& files) {
    if (options.inputs.empty() == options.mix.empty())
        fail(Category::config, "give inputs, or --mix NAME=WEIGHT:INPUT for several data sets, and not both");
    Path const& output = options.text.output;
    if (Path const name = output.filename(); name.empty() || name == "." || name == "..")
        fail(Category::config, "--output {}: a folder, where the prefix of the files is expected, such as {}",
             output.string(), (output / "data").string());
    if (options.mix.empty()) return tokenize_set(options, options.inputs, output, files);
    auto const parts = parse_mix(options.mix);
    for (MixPart const& part : parts) tokenize_set(options, part.inputs, mix_output(output, part), files);
    print_printable("train on them with\n  '{}'\n", mix_override(parts, output));
}

}  // namespace
}  // namespace perigee

namespace perigee {

Action declare_tokenize(CLI::App& app) {
    auto const options = std::make_shared<TokenizeOptions>();
    declare(app, *options);
    return [options](FileSystem& files) {
        tokenize(*options, files);
        return 0;
    };
}

}  // namespace perigee
