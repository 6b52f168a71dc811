// Speed and memory of training steps as one rank of a job, on one GPU or on the CPU: computes what that rank computes,
// in the memory that it takes, while links are played at a rate that is given (parallel/phantom.h).
//   bench_train CONFIG [key=value ...] [--as-rank R --of dp=4,cp=2,tp=1] [--link-gb-s G] [--traffic]

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "app/dry_run.h"
#include "app/fit.h"
#include "commands/bench/random_batch.h"
#include "config/config.h"
#include "ops/observed_ops.h"
#include "train/phantom_rank.h"
#include "train/progress.h"

namespace perigee {

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
    std::string config, layout, row;
    std::vector<std::string> overrides;
    int rank = 0;
    int64_t steps = 5, warmup = 2;
    double gigabytes_per_second = 340, microseconds = 20;
    bool traffic = false, json = false;
};

Options parse(CLI::App& app, int argc, char** argv) {
    Options o;
    app.add_option("CONFIG", o.config, "YAML file")->required();
    app.add_option("overrides", o.overrides, "as for perigee train")->type_name("key=value");
    auto* const of = app.add_option("--of", o.layout, "the job's axes: dp=4 or cp=4,tp=2");
    app.add_option("--as-rank", o.rank, "rank of the job that is played")->needs(of);
    app.add_option("--link-gb-s", o.gigabytes_per_second, "rate of collectives, in GB/s a rank sends; 0: no time");
    app.add_option("--latency-us", o.microseconds, "of every collective");
    app.add_flag("--traffic", o.traffic, "collectives also move bytes in memory");
    app.add_option("--steps", o.steps, "timed steps")->check(CLI::PositiveNumber);
    app.add_option("--warmup", o.warmup, "steps before")->check(CLI::PositiveNumber);
    app.add_option("--row", o.row, "name of the row, for --json");
    app.add_flag("--json", o.json, "end with one JSON object");
    app.parse(argc, argv);
    return o;
}

/// "cp=4,tp=2"; returns the ranks of the job.
int set_layout(std::string const& layout, ParallelOptions& parallel) {
    parallel.data = parallel.context = parallel.tensor = 1;
    for (std::string const& axis : CLI::detail::split(layout, ',')) {
        size_t const equals = axis.find('=');
        std::string const name = axis.substr(0, equals);
        int64_t* const size = name == "dp"   ? &parallel.data
                              : name == "cp" ? &parallel.context
                              : name == "tp" ? &parallel.tensor
                                             : nullptr;
        if (equals == std::string::npos || size == nullptr ||
            !CLI::detail::lexical_cast(axis.substr(equals + 1), *size) || *size < 1)
            fail(Category::config, "--of {}: {} is not dp=N, cp=N or tp=N", layout, axis);
    }
    return static_cast<int>(parallel.data * parallel.context * parallel.tensor);
}

struct Measured {
    StepReport report;
    double seconds = 0;  ///< of a step, the mean: gathers of updated weights run on into the next
    int64_t bytes = 0;   ///< of the device in use, the largest seen after a step
    int64_t predicted = 0;
    std::map<std::string, double> exposed;  ///< seconds of a step, by axis
    PhaseSeconds phases = {};
};

/// What the compute queue waited for, by axis. Of lanes it waits for gradients, for weights, and for activations that
/// come back from the host, which count with them.
std::map<std::string, double> exposed(Phantom const& phantom, double communication, double steps) {
    std::map<std::string, double> seconds;
    double rest = communication;
    for (auto const& [axis, of_axis] : phantom.in_compute_queue()) {
        rest -= of_axis;
        seconds[to_string(axis)] = of_axis / steps;
    }
    seconds[to_string(Axis::data_context)] += std::max(rest, 0.0) / steps;
    return seconds;
}

Measured measure(Options const& o, RunOptions const& options, int world, Machine machine, FileSystem& files) {
    PhantomOptions played = phantom_options(options, world, o.rank);
    played.bytes_per_second = 1e9 * o.gigabytes_per_second;
    played.latency = 1e-6 * o.microseconds;
    played.traffic = o.traffic;
    Device& device = *machine.device;
    Phantom phantom(played, *machine.ops);
    Machine shared{nullptr, std::make_unique<ObservedOps>(*machine.ops)};
    Measured m;
    {
        Session session(options, Mesh(options.parallel, phantom.world(), phantom.groups()), std::move(shared), files);
        Learner learner(session);
        RunState state;
        initialise_phantom(session, learner, 1);
        int64_t const micro_batches =
            options.train.global_batch_size / (options.train.micro_batch_size * session.mesh().shape().dp);
        std::vector<Batch> batches;
        for (int64_t i = 0; i < micro_batches; ++i) batches.push_back(random_batch(options, static_cast<uint64_t>(i)));
        device.phases().start();
        auto const step = [&] {
            m.report = learner.step(batches, state);
            m.bytes = std::max(m.bytes, device.used_bytes());
        };
        for (int64_t i = 0; i < o.warmup; ++i) step();
        device.synchronize();
        phantom.clear(), device.phases().take();
        auto const start = Clock::now();
        for (int64_t i = 0; i < o.steps; ++i) step();
        device.synchronize();
        m.seconds = std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(o.steps);
        m.phases = device.phases().take();
        double const communication = m.phases[static_cast<size_t>(Phase::communication)];
        m.exposed = exposed(phantom, communication, static_cast<double>(o.steps));
    }
    m.predicted = step_cost(options, world).memory.sum();
    return m;
}

void print(Options const& o, RunOptions const& options, int world, std::string const& device, int64_t before,
           Measured const& m) {
    double const rate = static_cast<double>(m.report.tokens) / m.seconds / world;
    fmt::print("{}{} as rank {} of {} ({} ranks) on {}, shard {}\n", o.row.empty() ? "" : o.row + ": ", o.config,
               o.rank, o.layout.empty() ? "one" : o.layout, world, device, to_string(options.parallel.shard));
    fmt::print("step            {:10.2f} ms  {:10.0f} tokens/s a GPU  attended {:.4f}  loss {:.4f}\n", 1e3 * m.seconds,
               rate, m.report.attended_share.value_or(1), m.report.loss);
    fmt::print("memory in use   {}, {} of them before; check says {} for tensors\n", format_bytes(m.bytes),
               format_bytes(before), format_bytes(m.predicted));
    fmt::print("exposed, at {} GB/s and {} us{}:", o.gigabytes_per_second, o.microseconds,
               o.traffic ? ", bytes moved in memory" : "");
    for (auto const& [axis, seconds] : m.exposed) fmt::print("  {} {:.2f} ms", axis, 1e3 * seconds);
    fmt::print("\n");
    if (!o.json) return;
    nlohmann::json milliseconds;
    for (auto const& [axis, seconds] : m.exposed) milliseconds[axis] = 1e3 * seconds;
    fmt::print("{}\n", nlohmann::json{{"row", o.row},
                                      {"rank", o.rank},
                                      {"of", o.layout},
                                      {"ranks", world},
                                      {"device", device},
                                      {"shard", to_string(options.parallel.shard)},
                                      {"recompute", options.train.recompute},
                                      {"offload", options.train.offload},
                                      {"mlp_chunk", options.train.mlp_chunk},
                                      {"overrides", o.overrides},
                                      {"tokens_per_s_per_gpu", rate},
                                      {"seconds", m.seconds},
                                      {"steps", o.steps},
                                      {"bytes", m.bytes},
                                      {"bytes_before", before},
                                      {"predicted_bytes", m.predicted},
                                      {"exposed_ms", milliseconds},
                                      {"link_gb_s", o.gigabytes_per_second},
                                      {"latency_us", o.microseconds},
                                      {"traffic", o.traffic},
                                      {"attended_share", m.report.attended_share.value_or(1)},
                                      {"loss", m.report.loss}}
                           .dump());
}

/// What `auto` means, by this device's memory, as for `perigee train`.
void decide(RunOptions& options, int world) {
    int64_t const there = memory_for_a_step(options, 1).bytes;
    if (options.parallel.shard == ShardStage::automatic)
        options.parallel.shard = first_stage_that_fits(options, world, there);
    if (options.train.recompute == kRecomputeAuto)
        options.train.recompute = to_string(recompute_that_fits(options, world, there));
    if (options.train.offload == kOffloadAuto) options.train.offload = offload_that_fits(options, world, there);
}

void run(Options const& o) {
    auto const files = make_file_system();
    RunOptions typed = load_config(o.config, o.overrides);
    int const world = o.layout.empty() ? 1 : set_layout(o.layout, typed.parallel);
    refuse_problems(typed, world, o.config);
    RunOptions options = resolve(typed, 1, *files);
    decide(options, world);
    Machine machine = make_machine(options);
    std::string const device = machine.device->name();
    int64_t const before = machine.device->used_bytes();
    print(o, options, world, device, before, measure(o, options, world, std::move(machine), *files));
}

}  // namespace

}  // namespace perigee

int main(int argc, char** argv) {
    CLI::App app("Times training steps as one rank of a job.");
    try {
        perigee::run(perigee::parse(app, argc, argv));
        return 0;
    } catch (CLI::ParseError const& e) {
        return app.exit(e);
    } catch (std::exception const& e) {
        return perigee::report_failure("bench_train", e);
    }
}
