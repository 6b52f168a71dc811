#include "train/options.h"

#include <algorithm>

#include "base/error.h"
#include "model/llama.h"
#include "parallel/context.h"

namespace perigee {

void describe(Schema& schema, ProfileOptions& options) {
    schema
        .add("steps", options.steps, between(0, 100),
             "steps of the job whose operations and collectives each rank writes to OUTPUT_DIR/trace_rank_R.json, for "
             "chrome://tracing or Perfetto; they run one by one, without CUDA graphs. 0: none")
        .add("first", options.first, between(0, kMostSteps), "steps of the job before the first traced one");
}

void describe(Schema& schema, TrainOptions& options) {
    schema
        .add("steps", options.steps, between(1, kMostSteps), "optimizer steps of the whole run, resumed parts included")
        .add("epochs", options.epochs, between(0, 1e6),
             "an epoch has as many samples as all training sets together, and reads each set once if the weights are "
             "proportional to the sets' samples; train.steps follows from it, rounded up. 0: train.steps counts")
        .add("global_batch_size", options.global_batch_size, between(1, 1 << 30),
             "samples per step over all ranks; gradient accumulation follows from it")
        .add("micro_batch_size", options.micro_batch_size, between(1, 1 << 16), "samples per rank and forward pass")
        .add("recompute", options.recompute,
             "what the backward computes again to save memory, and the gradients are the same bits: none; elementwise, "
             "norms and SwiGLU; mlp, also the products with gate and up; attention, all but attention itself, whose "
             "output and log-sum-exp stay; block, everything. One for all layers, or a list from the first layer on, "
             "such as \"block*28, attention*4\"; auto takes the cheapest that fits into the memory")
        .add("mlp_chunk", options.mlp_chunk, between(0, static_cast<double>(kMostTokens)),
             "tokens of a rank that the MLP computes at once, forward and backward, so that what lies between its "
             "products takes the memory of so many; they are computed again in the backward, whatever recompute says. "
             "0: all. The gradients of its weights are sums over chunks, in fp32")
        .add("offload", options.offload, between(0, kMostLayers),
             "layers, spread over the model, whose kept activations wait in pinned memory of the host for their "
             "backward; the same bits. auto: as few as make a step fit")
        .word("auto", kOffloadAuto)
        .add("cuda_graphs", options.cuda_graphs,
             "on a GPU: micro-batches whose documents have the lengths of an earlier one are queued as CUDA graphs; "
             "the same bits, less work for the host")
        .add("moba_scratch_mib", options.moba_scratch_mib, between(1, 1 << 20),
             "on a GPU: budget in MiB of the attention kernels' scratch memory; with less they take more "
             "passes, of fewer heads, then of fewer tokens, which is slower and changes the order of sums. Too "
             "little is refused with the bytes needed. The routing, 4 bytes for each selected block of each "
             "token and query head, counts, but lies with the activations, as the backward takes the forward's")
        .choice("non_finite", options.non_finite, {{"skip", NonFinite::skip}, {"stop", NonFinite::stop}},
                "what to do when a loss or gradient is not finite: skip the step, or stop the run; the weights never "
                "see it")
        .add("max_skipped_in_a_row", options.max_skipped_in_a_row, between(0, kMostSteps),
             "with non_finite: skip or guard.spike: skip, stop when more steps than this are skipped one after the "
             "other; with guard.spike: rollback, roll back then")
        .add("freeze", options.freeze,
             "parameters that are not trained, by Hugging Face name; * matches any text: "
             "[\"model.embed_tokens.weight\", \"model.layers.[0-3].*\"]. They have no gradient and no optimizer state, "
             "and checkpoints do not hold them")
        .defines_model()
        .section("profile", options.profile, "A trace of some steps, for a viewer.");
}

void describe(Schema& schema, GuardOptions& options) {
    schema
        .choice("spike", options.spike,
                {{"warn", SpikePolicy::warn},
                 {"skip", SpikePolicy::skip},
                 {"rollback", SpikePolicy::rollback},
                 {"stop", SpikePolicy::stop}},
                "what to do about a spike of the loss or the gradient norm: warn, and take the step; skip it, as "
                "train.max_skipped_in_a_row allows; rollback, return to the last good checkpoint and go on after the "
                "data that led to it; or stop, with exit code 5. All but warn keep it from the weights. The "
                "checkpoint before a spike is never pruned")
        .add("spike_sigma", options.spike_sigma, above(0),
             "a spike is more than so many standard deviations above the median of the last steps, by estimates that "
             "spikes do not move; for the gradient norm, the deviation is at least 5 medians")
        .add("spike_window", options.spike_window, between(16, 4096),
             "steps that the median and the deviation are of; the guard begins after half as many")
        .add("max_rollbacks", options.max_rollbacks, between(0, kMostSteps),
             "with spike: rollback, stop at the next spike after so many, none of them guard.spike_window steps after "
             "the one before")
        .add("compute_again", options.compute_again,
             "compute a step with a spike, or one that is not finite, a second time: another result is a passing fault "
             "of a device, and the second one counts")
        .add("hash_every", options.hash_every, between(0, kMostSteps),
             "compare what several ranks hold alike (weights, moments, gradients, as parallel.shard leaves them whole) "
             "by hashes every so many steps; exit code 9 or 10 where one differs, a warning where it no longer differs "
             "when read again. 0: never")
        .add("slow_factor", options.slow_factor, at_least(0),
             "name a rank whose own work in a step takes more than this times the median rank's, in the mean since the "
             "last look, every 100 steps; 0: never");
}

void describe(Schema& schema, EvalOptions& options) {
    schema
        .add("every", options.every, between(0, kMostSteps),
             "steps between evaluations on held-out data; 0: never while training")
        .add("samples", options.samples, between(1, 1 << 30),
             "held-out samples per evaluation, or all where there are fewer")
        .add("reach", options.reach,
             "also report, per layer, the share of tokens, padding included, that receive gradient, on as many of the "
             "next training "
             "samples, how far the heads of a group agree on their blocks, and for mock data of task far_recall the "
             "share of needed blocks that MoBA chose")
        .add("blocks", options.blocks,
             "also write to OUTPUT_DIR/blocks.jsonl, per MoBA layer, which blocks the heads choose in the first "
             "held-out sample: the report draws it")
        .add("prompt", options.prompt,
             "continue or answer this text at every evaluation, as the keys of generate say, and add the result to "
             "OUTPUT_DIR/samples.jsonl; empty: none")
        .section("suites", options.suites,
                 "Long-context suites, for `perigee eval --suite`; docs/evaluation.md describes them.");
}

void describe(Schema& schema, ServeOptions& options) {
    schema
        .add("host", options.host,
             "address to listen at; whoever reaches it may use the model, so the default is this machine alone, and "
             "0.0.0.0 is every network that it is in")
        .add("port", options.port, between(0, 65535), "port to listen at; 0: any that is free")
        .add("queue", options.queue, between(1, 1 << 16),
             "texts that may wait while generate.batch of them are answered; a request with more gets status 503")
        .add("body_mib", options.body_mib, between(1, 1024), "MiB that the body of a request may have; else status 413")
        .add("request_s", options.request_s, between(0.001, 1e6),
             "seconds that a request may take: an answer ends with what there is, and one that has not begun gets "
             "status 503");
}

void describe(Schema& schema, LogOptions& options) {
    schema
        .add("every", options.every, between(0, kMostSteps),
             "steps between log lines; 0: a line about every log.seconds. metrics.jsonl has every step")
        .add("seconds", options.seconds, at_least(0),
             "seconds between log lines, where log.every is 0; the first and the last step always have one")
        .add("progress", options.progress, "show a progress bar on a terminal")
        .add("tensorboard", options.tensorboard,
             "also write the metrics as TensorBoard's event files: tensorboard --logdir OUTPUT_DIR/tensorboard")
        .add("participation_every", options.participation_every, at_least(0),
             "steps between reports, per layer, of how evenly the tokens of the batch take part in the gradient "
             "(participation_L in docs/runs.md). 0: never");
}

void describe(Schema& schema, RunOptions& options) {
    schema.add("output_dir", options.output_dir, "folder of the run: resolved config, metrics, log, checkpoints")
        .add("seed", options.seed, at_least(0), "every random number of the run follows from it")
        .choice("device", options.device,
                {{"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}},
                "where to compute; auto takes a GPU where there is one")
        .add("deterministic", options.deterministic,
             "on a GPU: the same bits every time, also where that costs speed; on the CPU they always are")
        .add("threads", options.threads, between(0, 4096), "CPU threads per rank; 0: every core the rank may use")
        .section("model", options.model, "Shape of the transformer, with Hugging Face's names and meanings.")
        .section("lora", options.model.lora, "Low-rank adapters, trained in place of the model's weights.")
        .section("attention", options.attention, "Which layers attend through MoBA, and how.");
    describe_key_conv(schema.inside(), options.model);
    schema.section("precision", options.precision, "Precision of the blocks' matrix products.")
        .section("data", options.data, "Where tokens come from and how samples are made of them.")
        .section("chat", options.chat, "How conversations become tokens, for `tokenize --chat` and `perigee generate`.")
        .section("train", options.train, "Length of the run, batch, and what to do about broken steps.")
        .section("guard", options.guard, "What to do about steps that would spoil a run.")
        .section("optimizer", options.optimizer, "AdamW and gradient clipping.")
        .section("schedule", options.schedule, "The learning rate over the run.")
        .section("checkpoint", options.checkpoint, "Saving and resuming.")
        .section("eval", options.eval, "Evaluation on held-out data while training.")
        .section("generate", options.generate, "Text generation, for `perigee generate` and `perigee serve`.")
        .section("serve", options.serve, "The server of `perigee serve`; docs/generation.md lists its requests.")
        .section("log", options.log, "What the run shows while it goes.")
        .section("watchdog", options.watchdog, "Time limits for parts of a run, so that a hanging rank ends the job.")
        .section("parallel", options.parallel, "How the ranks share the work.");
}

namespace {

/// A growing list of sentences.
struct Sentences {
    std::vector<std::string> list;
    template <class... Args>
    void add(fmt::format_string<Args...> format, Args&&... args) {
        list.push_back(fmt::format(format, std::forward<Args>(args)...));
    }
    void add_all(std::vector<std::string> const& more) { list.insert(list.end(), more.begin(), more.end()); }
};

void check_batch(RunOptions const& options, int dp, Sentences& out) {
    TrainOptions const& train = options.train;
    if (train.global_batch_size % dp != 0 || train.global_batch_size / dp % train.micro_batch_size != 0) {
        out.add(
            "train.global_batch_size ({}) must be a multiple of train.micro_batch_size ({}) times the data-parallel "
            "ranks ({})",
            train.global_batch_size, train.micro_batch_size, dp);
    }
    if (train.micro_batch_size > kMostTokens / options.data.sequence_length) {
        out.add("train.micro_batch_size ({}) times data.sequence_length ({}) must be at most {} tokens",
                train.micro_batch_size, options.data.sequence_length, kMostTokens);
    }
    constexpr int64_t kMostSamples = int64_t{1} << 60;
    if (train.steps > kMostSamples / train.global_batch_size) {
        out.add("train.steps ({}) times train.global_batch_size ({}) must be at most {} samples", train.steps,
                train.global_batch_size, kMostSamples);
    }
}

/// Returns the data-parallel ranks, 1 where the layout does not fit the job.
int check_layout(RunOptions const& options, int world_size, Sentences& out) {
    ParallelOptions const& parallel = options.parallel;
    ModelOptions const& model = options.model;
    for (auto const& [name, size] : {std::pair{"num_attention_heads", model.num_attention_heads},
                                     {"num_key_value_heads", model.kv_heads()},
                                     {"intermediate_size", model.intermediate_size},
                                     {"vocab_size", model.vocab_size}}) {
        if (size % parallel.tensor != 0)
            out.add("model.{} ({}) must be a multiple of parallel.tensor ({})", name, size, parallel.tensor);
    }
    if (options.data.sequence_length % (parallel.context * parallel.tensor) != 0) {
        out.add("data.sequence_length ({}) must be a multiple of parallel.context ({}) times parallel.tensor ({})",
                options.data.sequence_length, parallel.context, parallel.tensor);
    }
    if (asks_for(options.eval.suites, Suite::mass) && parallel.context > 1)
        out.add("suite mass of eval.suites.run needs parallel.context of 1, not {}", parallel.context);
    if (model.key_conv > 0 && parallel.context > 1)
        out.add("attention.key_conv ({}) needs parallel.context of 1, not {}", model.key_conv, parallel.context);
    if (parallel.tensor > 0 && model.kv_heads() / parallel.tensor % parallel.head_groups != 0)
        out.add("parallel.head_groups ({}) must be a divisor of a rank's key/value heads ({} / parallel.tensor = {})",
                parallel.head_groups, model.kv_heads(), parallel.tensor);
    try {
        MeshShape const shape = resolve_mesh(parallel, world_size);
        resolve_context_modes(parallel.context_mode, shape, model.kv_heads());
        return shape.dp;
    } catch (Error const& error) {
        out.add("{}", error.what());
        return 1;
    }
}

/// Larger ones fit no machine, and planning them would take as long as they are large.
void check_size(RunOptions const& options, Sentences& out) {
    constexpr double kMostParameters = 1e13;
    constexpr int64_t kMostBuckets = 1 << 16;
    ModelOptions const& model = options.model;
    auto const parameters =
        static_cast<double>(model.num_hidden_layers) * static_cast<double>(weights_per_layer(model)) +
        2.0 * static_cast<double>(model.vocab_size * model.hidden_size);
    if (parameters > kMostParameters) {
        return out.add(
            "model: {:.2g} parameters, at most {:.0g} can be planned for: hidden_size ({}), intermediate_size ({}), "
            "num_hidden_layers ({}) or vocab_size ({}) is too large",
            parameters, kMostParameters, model.hidden_size, model.intermediate_size, model.num_hidden_layers,
            model.vocab_size);
    }
    double const gradients = 4 * parameters / static_cast<double>(options.parallel.tensor) / (1 << 20);  // MiB
    if (gradients / static_cast<double>(options.parallel.bucket_mib) > kMostBuckets) {
        out.add("parallel.bucket_mib ({}) cuts {:.4g} MiB of gradients into more than {} buckets: make it at least {}",
                options.parallel.bucket_mib, gradients, kMostBuckets,
                static_cast<int64_t>(gradients / kMostBuckets) + 1);
    }
}

void check_trained(RunOptions const& options, Sentences& out) {
    if (options.model.lora.rank > 0 && options.precision.linear != LinearPrecision::bf16)
        out.add("lora.rank ({}) needs precision.linear: bf16", options.model.lora.rank);
    if (options.train.freeze.empty()) return;
    if (options.model.lora.rank > 0)
        return out.add("train.freeze and lora.rank ({}): with adapters all of the model's own weights are frozen",
                       options.model.lora.rank);
    try {
        auto params = llama_params(options.model);
        freeze(params, options.train.freeze);
    } catch (Error const& error) {
        out.add("{}", error.what());
    }
}

void check_memory_policy(RunOptions const& options, Sentences& out) {
    constexpr int64_t kMostChunks = 1 << 16;
    int64_t const layers = options.model.num_hidden_layers, chunk = options.train.mlp_chunk;
    int64_t const tokens = options.train.micro_batch_size * options.data.sequence_length / options.parallel.context;
    int64_t const most = kMostChunks / layers;
    if (chunk > 0 && (tokens + chunk - 1) / chunk > most) {
        out.add(
            "train.mlp_chunk ({}) cuts the {} tokens of a rank in {} layers into more than {} chunks: make it at "
            "least {}",
            chunk, tokens, layers, kMostChunks, (tokens + most - 1) / most);
    }
    try {
        parse_recompute(options.train.recompute, options.model.num_hidden_layers);
    } catch (Error const& error) {
        out.add("{}", error.what());
    }
}

void check_schedule(RunOptions const& options, Sentences& out) {
    ScheduleOptions const& schedule = options.schedule;
    int64_t const steps = options.train.steps;
    if (schedule.warmup_steps > steps)
        out.add("schedule.warmup_steps ({}) must be at most train.steps ({})", schedule.warmup_steps, steps);
    if (schedule.decay == Decay::wsd && schedule.warmup_steps <= steps &&
        schedule.decay_steps > steps - schedule.warmup_steps) {
        out.add("schedule.warmup_steps ({}) and schedule.decay_steps ({}) together must be at most train.steps ({})",
                schedule.warmup_steps, schedule.decay_steps, steps);
    }
}

void check_data(RunOptions const& options, Sentences& out) {
    if (options.output_dir.empty()) out.add("output_dir is empty: name the folder of the run");
    if (options.data.sequence_length > options.model.max_position_embeddings) {
        out.add("data.sequence_length ({}) must be at most model.max_position_embeddings ({})",
                options.data.sequence_length, options.model.max_position_embeddings);
    }
    bool const held_out = !options.data.validation.empty() || options.data.validation_fraction > 0;
    if (options.eval.every > 0 && !held_out && !options.data.mock_data) {
        out.add(
            "eval.every is {} but there is no held-out data: give data.validation or a data.validation_fraction "
            "above 0",
            options.eval.every);
    }
    if (options.checkpoint.keep_best && (options.eval.every == 0 || options.checkpoint.every == 0 ||
                                         options.eval.every % options.checkpoint.every != 0)) {
        out.add(
            "checkpoint.keep_best needs a checkpoint wherever there is an evaluation: eval.every ({}) must be a "
            "multiple of checkpoint.every ({})",
            options.eval.every, options.checkpoint.every);
    }
}

void check_suites(RunOptions const& options, Sentences& out) {
    SuiteOptions const& suites = options.eval.suites;
    for (std::string const& problem : problems(suites)) out.add("eval.suites.{}", problem);
    if (!suites.lengths.empty() && suites.lengths.back() > options.model.max_position_embeddings) {
        out.add("eval.suites.lengths ({}) must be at most model.max_position_embeddings ({})", suites.lengths.back(),
                options.model.max_position_embeddings);
    }
    for (Suite const suite : {Suite::position, Suite::mass})
        if (asks_for(suites, suite) && !has_validation(options.data)) {
            out.add(
                "eval.suites.run: suite {} is about held-out data, but there is none: give data.validation or a "
                "data.validation_fraction above 0",
                to_string(suite));
        }
    BlockBudget const budget{options.attention.moba.block_size, options.attention.moba.top_k};
    if (asks_for(suites, Suite::mass) && options.data.sequence_length <= budget.top_k * budget.block_size)
        out.add(
            "eval.suites.run: suite mass needs data.sequence_length ({}) above {} blocks of {} tokens: all are chosen",
            options.data.sequence_length, budget.top_k, budget.block_size);
}

}  // namespace

MemoryPolicy memory_policy(RunOptions const& options) {
    return {.recompute = parse_recompute(options.train.recompute, options.model.num_hidden_layers),
            .mlp_chunk = options.train.mlp_chunk,
            .offload = options.train.offload == kOffloadAuto ? 0 : options.train.offload};
}

namespace {

void check_generate(SamplingOptions const& options, Sentences& out) {
    if (options.input.empty() != options.output.empty())
        out.add("generate.input (\"{}\") and generate.output (\"{}\") must be given together", options.input,
                options.output);
    if (options.chat && !options.input.empty())
        out.add("generate.chat and generate.input (\"{}\"): one of them at a time", options.input);
}

/// The shell expands ~, the program does not: it would use a folder of that name.
void check_paths(RunOptions const& options, Sentences& out) {
    std::vector<std::pair<std::string, std::string>> paths = {{"output_dir", options.output_dir},
                                                              {"lora.init_from", options.model.lora.init_from},
                                                              {"data.tokenizer", options.data.tokenizer},
                                                              {"checkpoint.resume", options.checkpoint.resume}};
    auto const add_all = [&](char const* key, std::vector<DatasetOptions> const& sets) {
        for (size_t i = 0; i < sets.size(); ++i) paths.emplace_back(fmt::format("{}.{}.path", key, i), sets[i].path);
    };
    add_all("data.train", options.data.train);
    add_all("data.validation", options.data.validation);
    for (auto const& [key, path] : paths)
        if (path.starts_with("~/"))
            out.add("{} ({}): ~ is not expanded here: write the whole path, or ./{} for a folder of that name", key,
                    path, path);
}

}  // namespace

TokensOfRank tokens_of_rank(RunOptions const& options, MeshShape const& mesh) {
    int64_t const all = options.train.micro_batch_size * options.data.sequence_length / mesh.cp;
    return {all, options.train.mlp_chunk == 0 ? all : std::min(options.train.mlp_chunk, all)};
}

std::vector<std::string> problems(RunOptions const& options, int world_size, TrainingData training_data) {
    Sentences out;
    out.add_all(problems(options.model));
    out.add_all(problems(options.attention, options.model));
    out.add_all(problems(options.precision, options.model));
    for (std::string const& problem : problems(options.data)) out.add("data.{}", problem);
    if (training_data == TrainingData::needed && options.data.train.empty() && !options.data.mock_data)
        out.add("data.train: no data sets given; list some, or set data.mock_data: true");
    out.add_all(problems(options.chat));
    int const dp = check_layout(options, world_size, out);
    check_batch(options, dp, out);
    check_size(options, out);
    check_memory_policy(options, out);
    check_trained(options, out);
    if (options.train.epochs == 0) check_schedule(options, out);
    check_data(options, out);
    check_suites(options, out);
    check_generate(options.generate, out);
    check_paths(options, out);
    return std::move(out.list);
}

std::vector<std::string> schedule_problems(RunOptions const& options) {
    Sentences out;
    check_schedule(options, out);
    return std::move(out.list);
}

}  // namespace perigee
