// Hugging Face folder to checkpoint, checkpoint or run to Hugging Face folder: `perigee convert SOURCE OUTPUT`.
#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <memory>

#include "base/log.h"
#include "base/printable.h"
#include "checkpoint/manifest.h"
#include "commands/command.h"
#include "commands/number_between.h"
#include "config/config.h"
#include "data/jinja_template.h"
#include "data/tokenizer/tokenizer_files.h"
#include "hf/convert.h"
#include "hf/peft.h"
#include "hf/weights.h"
#include "model/llama.h"
#include "train/described.h"
#include "train/progress.h"
#include "train/run_folder.h"

namespace perigee {
namespace {

struct ConvertOptions {
    Path source, output, config, companions, base;
    std::string type;
    double shard_gb = 5;
    bool merge = false;
};

void declare(CLI::App& app, ConvertOptions& options) {
    app.add_option("source", options.source, "Hugging Face folder, checkpoint, or run folder (its newest checkpoint)")
        ->required();
    app.add_option("output", options.output, "folder to make; must not exist")->required();
    app.add_option("--dtype", options.type,
                   "of exported weights; by default that of the folder they came from, or float32")
        ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
    app.add_option("--shard-gb", options.shard_gb, "split exported weights into files of at most so many GB")
        ->check(number_between(1e-9, 1e9))
        ->capture_default_str();
    app.add_option("--config", options.config, "YAML that describes the model, where the checkpoint does not");
    app.add_flag("--merge", options.merge,
                 "add adapters to the weights of their model; without it, write a folder in PEFT's format");
    app.add_option("--base", options.base,
                   "folder of the model that the run started from, for adapters and frozen weights; default: "
                   "model.init_from of the run; without one, its initial random weights, drawn again from its seed");
    app.add_option("--companions", options.companions, "folder with tokenizer files for the export");
}

/// A bar on a terminal; silent elsewhere.
ConversionProgress show_progress(Progress& bar) {
    auto const start = std::chrono::steady_clock::now();
    return [&bar, start](int64_t done, int64_t total) {
        double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        double const eta =
            seconds * static_cast<double>(total - done) / static_cast<double>(std::max<int64_t>(done, 1));
        bar.update(done, total, eta, fmt::format("{} of {}", format_bytes(done), format_bytes(total)));
    };
}

Checkpoint open_source(FileSystem& files, Path const& source) {
    if (files.exists(source / kManifestName)) return Checkpoint::open(files, source);
    if (files.exists(checkpoint_root(source.string())))
        if (auto found = find_latest(files, *make_single_host_comm(), checkpoint_root(source.string())))
            return std::move(*found);
    if (files.exists(source / kAdapterConfigName))
        fail(Category::config,
             "{} holds adapters in PEFT's format, and convert merges those of a run: a run with lora.init_from={} "
             "trains on from them",
             source.string(), source.string());
    fail(Category::config, "{} is neither a Hugging Face folder nor a checkpoint nor a run with checkpoints",
         source.string());
}

/// The options of the run that wrote a checkpoint: the YAML that --config names, else what the checkpoint says, else,
/// of older programs, the config.yaml of the run's folder.
RunOptions options_of(FileSystem& files, ConvertOptions const& options, Checkpoint const& checkpoint) {
    if (options.config.empty())
        if (auto const stored = stored_options(checkpoint.state())) return *stored;
    Path const yaml = options.config.empty() ? checkpoint.folder() / ".." / ".." / "config.yaml" : options.config;
    if (!files.exists(yaml))
        fail(Category::config, "{} does not tell which model it is: name the YAML of its run with --config",
             checkpoint.folder().string());
    RunOptions run;
    apply_file(run, yaml.string());
    return run;
}

/// The folder that a run began with may have a tokenizer that the run never used.
void warn_of_other_tokenizer(FileSystem& files, RunOptions const& run) {
    Path const folder = run.model.init_from;
    if (folder.empty() || run.data.mock_data || run.data.tokenizer != DataOptions{}.tokenizer) return;
    if (!has_tokenizer(files, folder)) return;
    log::warn(
        "the run's data.tokenizer is {}, so its token ids are not those of the tokenizer in {}, which the export "
        "carries: they do not fit together",
        run.data.tokenizer, folder.string());
}

/// What the weights of a checkpoint mean: said by the config.json beside them, or by the run.
ExportOptions describe_checkpoint(FileSystem& files, ConvertOptions const& options, Checkpoint const& checkpoint) {
    Path const folder = checkpoint.folder();
    ExportOptions result;
    result.type = source_type(checkpoint);
    if (options.config.empty() && files.exists(folder / kConfigName)) {
        HfConfig const config = read_hf_config(files, folder);
        result.model = config.model;
        result.attention = config.attention.value_or(AttentionOptions{.kind = AttentionKind::full});
        result.origin = folder;
        return result;
    }
    RunOptions const run = options_of(files, options, checkpoint);
    if (options.companions.empty()) warn_of_other_tokenizer(files, run);
    if (files.exists(run.model.init_from)) result.origin = run.model.init_from;  // it may be gone
    result.base = options.base.empty() ? Path(run.model.init_from) : options.base;
    Path const tokenizer = run.data.tokenizer;
    if (result.origin.empty() && files.exists(tokenizer)) {
        result.companions = files.is_directory(tokenizer) ? tokenizer : tokenizer.parent_path();
        try {
            result.ends.push_back(make_tokenizer(files, tokenizer.string())->end_of_document());
        } catch (Error const& error) {
            if (error.category() != Category::config) throw;
            log::warn("eos_token_id does not name the token that ends a document: {}", error.what());
        }
    }
    result.model = run.model;
    result.attention = attention_at(run.attention, checkpoint.state().step);
    if (!result.origin.empty() && files.exists(result.origin / kManifestName))
        result.type = source_type(Checkpoint::open(files, result.origin));
    else if (!result.origin.empty() && files.exists(result.origin / kConfigName))
        result.type = HfWeights(files, result.origin).type(base_params(result.model));
    return result;
}

/// What training rendered goes into the folder, whatever the one that it began with has.
void take_chat_template(FileSystem& files, Checkpoint const& checkpoint, ExportOptions& to) {
    auto const& info = checkpoint.state().info;
    auto const trained = info.find(RunState::kChatTemplate);
    if (trained == info.end()) return;
    to.chat_template = trained->second;
    if (auto const stop = info.find(RunState::kChatStop); stop != info.end()) {
        int32_t id = 0;
        auto const [end, error] = std::from_chars(stop->second.data(), stop->second.data() + stop->second.size(), id);
        if (error == std::errc{}) to.ends.push_back(id);
    }
    Path const& companions = to.companions.empty() ? to.origin : to.companions;
    auto const own = companions.empty() ? std::nullopt : find_jinja_template(files, companions.string(), {});
    if (own && own->text != to.chat_template)
        print_printable("chat_template.jinja is the template of the training data, which is not that of {}\n",
                        own->source);
}

/// Options that would have no effect.
void check(ConvertOptions const& options, bool is_hugging_face, FileSystem& files) {
    for (auto const& [given, name] : {std::pair{!options.type.empty(), "--dtype"},
                                      {!options.config.empty(), "--config"},
                                      {options.merge, "--merge"},
                                      {!options.base.empty(), "--base"},
                                      {!options.companions.empty(), "--companions"}})
        if (given && is_hugging_face)
            fail(Category::config, "{} is a Hugging Face folder, which becomes a checkpoint: {} is for exports",
                 options.source.string(), name);
    for (auto const& [folder, name] : {std::pair{&options.base, "--base"}, {&options.companions, "--companions"}})
        if (!folder->empty() && !files.is_directory(*folder))
            fail(Category::config, "{} {}: no such folder", name, folder->string());
}

void convert(ConvertOptions const& options, FileSystem& files) {
    Progress bar(/*wanted=*/true);
    bool const is_hugging_face =
        !files.exists(options.source / kManifestName) && files.exists(options.source / kConfigName);
    check(options, is_hugging_face, files);
    std::string made = is_hugging_face ? "a checkpoint" : "a Hugging Face folder";
    Path from = options.source;
    if (is_hugging_face) {
        import_checkpoint(files, options.source, options.output, show_progress(bar));
    } else {
        Checkpoint const checkpoint = open_source(files, options.source);
        from = checkpoint.folder();  // of a run, the newest that is whole
        ExportOptions to = describe_checkpoint(files, options, checkpoint);
        if (auto const type = element_type(options.type)) to.type = *type;
        if (!options.companions.empty()) to.companions = options.companions;
        take_chat_template(files, checkpoint, to);
        to.shard_bytes = static_cast<int64_t>(options.shard_gb * 1e9);
        bool const adapters = to.model.lora.rank > 0 && !options.merge;
        if (adapters)
            export_adapters(files, checkpoint, to, options.output);
        else
            export_folder(files, checkpoint, to, options.output, show_progress(bar));
        if (adapters) made = "adapters in PEFT's format";
    }
    bar.clear();
    print_printable("{}: {} of {}\n", options.output.string(), made, from.string());
}

}  // namespace
}  // namespace perigee

namespace perigee {

Action declare_convert(CLI::App& app) {
    auto const options = std::make_shared<ConvertOptions>();
    declare(app, *options);
    return [options](FileSystem& files) {
        convert(*options, files);
        return 0;
    };
}

}  // namespace perigee
