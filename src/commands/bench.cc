// Speed of whole training steps of a config, on the CPU or on a GPU, with documents of full length: tokens/s, TFLOP/s,
// and the share reached of the speed of light, which is the time that the step's matrix products would take alone, at
// the speed each shape reaches in this very run, and its attention at the speed of full attention.
//   perigee bench CONFIG [key=value ...] [--steps N] [--warmup N] [--profile] [--brief] [--json]

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands/bench/measure.h"
#include "commands/bench/random_batch.h"
#include "commands/bench/recording_ops.h"
#include "commands/command.h"
#include "config/config.h"
#include "device/peak_flops.h"
#include "train/learner.h"
#include "train/progress.h"

namespace perigee {

namespace {

constexpr int64_t kMostTimed = 1'000'000;

struct BenchOptions {
    std::string config;
    std::vector<std::string> overrides;
    int64_t steps = 30;
    int64_t warmup = 5;
    bool profile = false;
    bool brief = false;
    bool json = false;
};

struct SpeedOfLight {
    double products = 0;   ///< seconds of a step's matrix products
    double attention = 0;  ///< seconds of its attention
    double product_flops = 0;
};

double product_seconds(Ops& ops, Arena& arena, RecordingOps::Product const& p) {
    Arena::Scope const scope(arena);
    DType const compute = ops.compute_dtype();
    TensorView const a = random_tensor(ops, arena, compute, p.transpose_a ? Shape{p.k, p.m} : Shape{p.m, p.k}, 1);
    TensorView const b = random_tensor(ops, arena, compute, p.transpose_b ? Shape{p.n, p.k} : Shape{p.k, p.n}, 2);
    TensorView const c = random_tensor(ops, arena, p.result, {p.m, p.n}, 3);
    return measure(ops.device(), [&] {
        ops.matmul({.c = c,
                    .a = a,
                    .b = b,
                    .transpose_a = p.transpose_a,
                    .transpose_b = p.transpose_b,
                    .accumulate = p.accumulate});
    });
}

/// Seconds per FLOP of full attention over such a batch, forward and backward together.
double attention_seconds_per_flop(Ops& ops, Arena& arena, RunOptions const& o, Batch const& batch) {
    Arena::Scope const scope(arena);
    int64_t const T = batch.tokens(), H = o.model.num_attention_heads, G = o.model.kv_heads(), K = o.model.head_size();
    auto const tensor = [&](int64_t heads, uint64_t seed) {
        return random_tensor(ops, arena, ops.compute_dtype(), {T, heads, K}, seed);
    };
    TensorView const q = tensor(H, 1), k = tensor(G, 2), v = tensor(G, 3), gradient = tensor(H, 4);
    TensorView const out = tensor(H, 5), dq = tensor(H, 6), dk = tensor(G, 7), dv = tensor(G, 8);
    TensorView const lse = arena.allocate("lse", ops.main_dtype(), {T, H});
    double const scale = 1 / std::sqrt(static_cast<double>(K));
    double const seconds = measure(ops.device(), [&] {
        ops.attention_forward({.o_THK = out,
                               .lse_TH = lse,
                               .q_THK = q,
                               .k_TGK = k,
                               .v_TGK = v,
                               .cu_seqlens = batch.cu_seqlens,
                               .scale = scale});
        ops.attention_backward({.dq_THK = dq,
                                .dk_TGK = dk,
                                .dv_TGK = dv,
                                .do_THK = gradient,
                                .q_THK = q,
                                .k_TGK = k,
                                .v_TGK = v,
                                .o_THK = out,
                                .lse_TH = lse,
                                .cu_seqlens = batch.cu_seqlens,
                                .scale = scale});
    });
    ModelOptions one_layer = o.model;
    one_layer.num_hidden_layers = 1;
    std::vector<Selection> const full = {FullAttention{}};
    return seconds / (3 * forward_flops(one_layer, full, batch.cu_seqlens).attention);
}

SpeedOfLight speed_of_light(RunOptions const& options, RecordingOps& ops, std::vector<Selection> const& selections,
                            Batch const& batch, int64_t micro_batches) {
    SpeedOfLight light;
    Arena arena(ops.device());
    for (auto const& [product, count] : ops.products()) {
        light.products += static_cast<double>(count) * product_seconds(ops, arena, product);
        light.product_flops += static_cast<double>(count) * 2.0 * static_cast<double>(product.m) *
                               static_cast<double>(product.n) * static_cast<double>(product.k);
    }
    ForwardFlops const flops = forward_flops(options.model, selections, batch.cu_seqlens);
    light.attention = static_cast<double>(micro_batches) * 3 * flops.attention *
                      attention_seconds_per_flop(ops, arena, options, batch);
    return light;
}

/// What a step costs the host: its time without what it waits for the device, with so few tokens that the queue never
/// fills up, which would make it wait too.
double host_seconds(Learner& learner, RecordingOps& ops, RunOptions options, RunState& state, int64_t micro_batches) {
    options.data.sequence_length = 128;
    options.train.micro_batch_size = 1;
    std::vector<Batch> const batches(static_cast<size_t>(micro_batches), random_batch(options, 99));
    std::vector<double> samples;
    for (int i = 0; i < 7; ++i) {
        ops.device().synchronize();
        ops.clear();
        auto const start = Clock::now();
        learner.step(batches, state);
        samples.push_back(seconds_since(start) - ops.table().at("download").seconds);
    }
    std::ranges::sort(samples);
    return samples[3];
}

/// The table of operations of one step, mean of a few.
std::map<std::string, TimedOps::Entry> timed_step(Learner& learner, RecordingOps& ops,
                                                  std::vector<Batch> const& batches, RunState& state, bool wait) {
    constexpr int kSteps = 3;
    ops.device().synchronize();
    ops.wait(wait);
    ops.clear();
    for (int i = 0; i < kSteps; ++i) learner.step(batches, state);
    ops.wait(false);
    auto table = ops.table();
    for (auto& [name, entry] : table) entry.calls /= kSteps, entry.seconds /= kSteps;
    return table;
}

/// Where a step's time goes: on the device, which costs a few microseconds of waiting a call, and on the host.
void profile(Learner& learner, RecordingOps& ops, std::vector<Batch> const& batches, RunState& state) {
    auto const device = timed_step(learner, ops, batches, state, true);
    auto const host = timed_step(learner, ops, batches, state, false);
    double sum = 0;
    for (auto const& [name, entry] : device) sum += entry.seconds;
    std::vector<std::pair<std::string, TimedOps::Entry>> rows(device.begin(), device.end());
    std::ranges::sort(rows, [](auto const& a, auto const& b) { return a.second.seconds > b.second.seconds; });
    fmt::print("{:<28}{:>8}{:>12}{:>8}{:>12}\n", "operation", "calls", "ms", "share", "host ms");
    for (auto const& [name, entry] : rows) {
        auto const queued = host.find(name);  // not where a graph holds it
        fmt::print("{:<28}{:>8}{:>12.3f}{:>7.1f}%{:>12.3f}\n", name, entry.calls, 1e3 * entry.seconds,
                   100 * entry.seconds / sum, queued == host.end() ? 0 : 1e3 * queued->second.seconds);
    }
}

void print_light(SpeedOfLight const& light, double tokens, double seconds) {
    double const sum = light.products + light.attention;
    fmt::print("speed of light  {:10.2f} ms  {:12.0f} tokens/s  reached {:.1f}%\n", 1e3 * sum, tokens / sum,
               100 * sum / seconds);
    fmt::print("  products      {:10.2f} ms  {:.1f} TFLOP/s\n", 1e3 * light.products,
               light.product_flops / light.products * 1e-12);
    fmt::print("  attention     {:10.2f} ms\n", 1e3 * light.attention);
}

void print_step(StepReport const& report, Device const& device, double seconds) {
    auto const peak = peak_bf16_flops(device.name());
    fmt::print("step            {:10.2f} ms  {:12.0f} tokens/s  {:7.1f} TFLOP/s{}\n", 1e3 * seconds,
               static_cast<double>(report.tokens) / seconds, report.flops / seconds * 1e-12,
               peak ? fmt::format("  mfu {:.1f}%", 100 * report.flops / seconds / *peak) : "");
}

RunOptions read_options(BenchOptions const& o, FileSystem& files) {
    RunOptions const options = load_config(o.config, o.overrides);
    refuse_problems(options, 1, o.config);
    if (options.train.recompute == kRecomputeAuto || options.train.offload == kOffloadAuto)
        fail(Category::config,
             "train.recompute and train.offload: `perigee train` decides what auto is; name what to measure");
    return resolve(options, 1, files);
}

void run(BenchOptions const& o, FileSystem& files) {
    auto const began = Clock::now();
    auto const world = make_single_host_comm();
    RunOptions const options = read_options(o, files);
    Machine inner = make_machine(options);
    auto recording = std::make_unique<RecordingOps>(*inner.ops);
    RecordingOps& ops = *recording;
    Device& device = *inner.device;
    Session session(options, Mesh(options.parallel, *world), {nullptr, std::move(recording)}, files);
    Learner learner(session);
    RunState state;
    learner.initialise(1);

    int64_t const micro_batches = options.train.global_batch_size / options.train.micro_batch_size;
    std::vector<Batch> batches;
    for (int64_t i = 0; i < micro_batches; ++i) batches.push_back(random_batch(options, static_cast<uint64_t>(i)));
    StepReport report;
    double first = 0;
    for (int64_t i = 0; i < o.warmup; ++i) {
        ops.record(i + 1 == o.warmup);
        report = learner.step(batches, state);
        device.synchronize();
        if (i == 0) first = seconds_since(began);
    }
    ops.record(false);
    ops.clear();
    auto const start = Clock::now();
    for (int64_t i = 0; i < o.steps; ++i) report = learner.step(batches, state);
    device.synchronize();
    double const seconds = seconds_since(start) / static_cast<double>(o.steps);
    if (o.profile) profile(learner, ops, batches, state);
    int64_t const used = device.used_bytes();
    double const host = o.brief ? 0 : host_seconds(learner, ops, options, state, micro_batches);
    SpeedOfLight light;
    if (!o.brief) light = speed_of_light(options, ops, session.selections(0), batches.front(), micro_batches);
    double const tokens = static_cast<double>(report.tokens);
    fmt::print("{} on {}: {} parameters, {} x {} tokens\n", o.config, device.name(), format_count(session.parameters()),
               micro_batches, batches.front().tokens());
    print_step(report, device, seconds);
    if (!o.brief) print_light(light, tokens, seconds);
    if (!o.brief)
        fmt::print("host            {:10.2f} ms: its part of a step, beside the device's work, {:.1f}%\n", 1e3 * host,
                   100 * host / seconds);
    fmt::print("start to end of first step {:.2f} s; activations {}, memory in use {}; loss {:.4f}\n", first,
               format_bytes(session.arena().peak_bytes()), format_bytes(used), report.loss);
    if (!o.json) return;
    nlohmann::json found = {{"tokens_per_s", tokens / seconds},
                            {"seconds", seconds},
                            {"tflops", report.flops / seconds * 1e-12},
                            {"light_seconds", light.products + light.attention},
                            {"host_seconds", host},
                            {"first_step_seconds", first},
                            {"activation_bytes", session.arena().peak_bytes()},
                            {"device_bytes", used},
                            {"loss", report.loss}};
    if (auto const peak = peak_bf16_flops(device.name())) found["mfu"] = report.flops / seconds / *peak;
    fmt::print("{}\n", found.dump());
}

}  // namespace

}  // namespace perigee

namespace perigee {

Action declare_bench(CLI::App& app) {
    auto const options = std::make_shared<BenchOptions>();
    app.add_option("CONFIG", options->config, "YAML file; docs/config.md lists its keys")->required();
    app.add_option("overrides", options->overrides, "as for perigee train")->type_name("key=value");
    app.add_option("--steps", options->steps, "timed steps")->check(CLI::Range(int64_t{1}, kMostTimed));
    app.add_option("--warmup", options->warmup, "steps before")->check(CLI::Range(int64_t{1}, kMostTimed));
    app.add_flag("--profile", options->profile, "also print where a step's time goes");
    app.add_flag("--brief", options->brief, "only the step: no speed of light, nothing of the host");
    app.add_flag("--json", options->json, "end with one JSON object");
    return [options](FileSystem& files) {
        run(*options, files);
        return 0;
    };
}

}  // namespace perigee
