// Text to tokens: `perigee tokenize INPUT... --output PREFIX` writes PREFIX.bin and PREFIX.idx for `train: [{path:
// PREFIX}]`. With --chat CONFIG the inputs are conversations.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/printable.h"
#include "commands/command.h"
#include "commands/number_between.h"
#include "commands/tokenize/chat.h"
#include "commands/tokenize/mix.h"
#include "commands/tokenize/text.h"
#include "config/config.h"
#include "data/dataset_files.h"
#include "io/output.h"

namespace perigee {
namespace {

struct TokenizeOptions {
    std::vector<Path> inputs;
    std::vector<std::string> mix, suffixes;
    TextInputs text;
    bool names_tokenizer = false;
    std::vector<std::string> of_text;  ///< options given that conversations do not take
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
        ->transform(CLI::CheckedTransformer(formats).description(""))
        ->transform(CLI::IsMember({"auto", "text", "jsonl"}).description("(auto, text, jsonl)"));
    app.add_option("--tokenizer", options.text.tokenizer,
                   "bytes, or the path of a tokenizer.json, of a tokenizer.model or of a folder with one; with --chat, "
                   "instead of the configuration's data.tokenizer")
        ->capture_default_str()
        ->each([&options](std::string const&) { options.names_tokenizer = true; });
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
        ->check(number_between(0, 1e9))
        ->capture_default_str();
    auto* const chat = app.add_option("--chat", options.chat,
                                      "the inputs are conversations, tokenized as the chat and data.tokenizer keys of "
                                      "this run's configuration say");
    for (char const* const name :
         {"--key", "--format", "--append-eod", "--prepend-bos", "--special", "--split-on-blank-lines"})
        app.get_option(name)->each([&options, name](std::string const&) { options.of_text.emplace_back(name); });
    app.add_option("--set", options.overrides, "with --chat: key=value over the configuration; may be repeated")
        ->needs(chat)
        ->allow_extra_args(false);
}

/// Refuses a key of the configuration in the place of an input.
void refuse_overrides(std::vector<Path> const& inputs, FileSystem& files) {
    auto const keys = config_keys();
    for (Path const& input : inputs) {
        std::string const text = input.string(), name = text.substr(0, text.find('='));
        if (name == text || std::ranges::find(keys, name, &ConfigKey::name) == keys.end() || files.exists(input))
            continue;
        fail(Category::config, "{}: no such file or folder; keys of the configuration need --set: --set {}", text,
             text);
    }
}

/// The files that `inputs` mean; says what is skipped.
std::vector<Path> files_of(TokenizeOptions const& options, std::vector<Path> const& inputs, FileSystem& files) {
    auto const format = options.chat.empty() ? options.text.text.format : TextOptions::Format::jsonl;
    if (!options.chat.empty()) refuse_overrides(inputs, files);
    std::vector<SkippedFile> skipped;
    std::vector<Path> found = list_text_files(files, inputs, options.suffixes, skipped, format);
    if (!skipped.empty()) {
        fmt::print(stderr, "perigee: {} files are skipped:\n", skipped.size());
        for (auto const& [path, reason] : skipped)
            fmt::print(stderr, "  {}: {}\n", printable_name(path.string()), printable_name(reason));
    }
    if (found.empty()) fail(Category::data, "no files to read");
    return found;
}

/// Refuses a data set whose files would take the place of what is read.
void check_output(TokenizeOptions const& options, std::vector<Path> inputs, Path const& output, FileSystem& files) {
    inputs.insert(inputs.end(), {options.chat, options.text.tokenizer});
    for (char const* const extension :
         {".bin", ".idx", ".mask", ".weights", ".bin.tmp", ".idx.tmp", ".mask.tmp", ".weights.tmp",
          kTokenizerRecordExtension, kChatRecordExtension, kResumeExtension, kLockExtension})
        if (Path const file = output.string() + extension; files.exists(file))
            refuse_replacing(inputs, file, "--output " + output.string());
}

/// One data set.
void tokenize_set(TokenizeOptions options, std::vector<Path> found, Path const& output, FileSystem& files) {
    options.text.files = std::move(found);
    options.text.output = output;
    if (options.chat.empty()) return tokenize_text(options.text, files);
    std::optional<std::string> tokenizer;
    if (options.names_tokenizer) tokenizer = options.text.tokenizer;
    tokenize_chats({options.chat, tokenizer, options.overrides, options.text.files, output, options.text.seconds},
                   files);
}

void tokenize(TokenizeOptions const& options, FileSystem& files) {
    if (!options.chat.empty() && !options.of_text.empty())
        fail(Category::config, "{} excludes --chat", options.of_text.front());
    if (options.inputs.empty() == options.mix.empty())
        fail(Category::config, "give inputs, or --mix NAME=WEIGHT:INPUT for several data sets, and not both");
    Path const& output = options.text.output;
    if (Path const name = output.filename(); name.empty() || name == "." || name == "..")
        fail(Category::config, "--output {}: a folder, where the prefix of the files is expected, such as {}",
             output.string(), (output / "data").string());
    if (auto const extension = output.extension(); extension == ".bin" || extension == ".idx")
        fail(Category::config, "--output {}: the prefix of the files is expected, without {}", output.string(),
             extension.string());
    if (options.mix.empty()) {
        auto found = files_of(options, options.inputs, files);
        check_output(options, found, output, files);
        return tokenize_set(options, std::move(found), output, files);
    }
    auto const parts = parse_mix(options.mix);
    std::vector<std::vector<Path>> found;  // of all parts before the first is tokenized, so that problems come first
    std::vector<Path> all;
    for (MixPart const& part : parts) {
        found.push_back(files_of(options, part.inputs, files));
        all.insert(all.end(), found.back().begin(), found.back().end());
    }
    for (MixPart const& part : parts) check_output(options, all, mix_output(output, part), files);
    for (size_t i = 0; i < parts.size(); ++i)
        tokenize_set(options, std::move(found[i]), mix_output(output, parts[i]), files);
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
