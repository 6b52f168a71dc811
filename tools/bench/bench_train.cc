// Speed and memory of training steps, on GPUs or on the CPU.
//   bench_train CONFIG [key=value ...] [--as-rank R --of dp=4,cp=2,tp=1] [--link-gb-s G] [--traffic]
// One process computes what rank R of a job computes, in the memory that it takes, while links are played at a rate
// that is given (parallel/phantom.h).
//   mpirun -n N bench_train CONFIG [key=value ...]
// The job itself, as `perigee train` runs it.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "app/dry_run.h"
#include "app/fit.h"
#include "comm/launch.h"
#include "commands/bench/random_batch.h"
#include "config/config.h"
#include "operation_table.h"
#include "train/phantom_rank.h"
#include "train/progress.h"
#include "train/seat.h"

namespace perigee {

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
    std::string config, layout, row;
    std::vector<std::string> overrides;
    int rank = 0;
    int64_t steps = 5, warmup = 2;
    double gigabytes_per_second = 340, microseconds = 20;
    bool traffic = false, operations = false, rehearse = false, json = false;
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
    app.add_option("--warmup", o.warmup, "steps before")->check(CLI::NonNegativeNumber);
    app.add_flag("--rehearse", o.rehearse, "before: a step that takes the memory, and computes next to nothing");
    app.add_option("--row", o.row, "name of the row, for --json");
    app.add_flag("--operations", o.operations, "one more step, whose operations are timed and listed");
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

/// Seconds of a step in which the compute queues of the ranks waited for other ranks.
struct Waits {
    std::vector<double> of_ranks;                   ///< on all axes together
    std::map<std::string, double> mean = {};        ///< by axis, over the ranks
    std::map<std::string, double> of_slowest = {};  ///< by axis, of the rank that waits least: others wait for it too
    /// By axis: of each wait what the rank that waited least in its group waited, summed; the mean over groups. The
    /// last rank to come to a wait waits for the links alone, not for other ranks to compute.
    std::map<std::string, double> of_links = {};
};

/// Of the rank that is slowest, or takes the most.
struct Measured {
    StepReport report;
    double seconds = 0;  ///< of a step, the mean: gathers of updated weights run on into the next
    double made_up = 0;  ///< seconds beside them, for what other ranks would have computed
    int64_t bytes = 0;   ///< of the device in use, the largest seen after a step
    Waits waits = {};
    PhaseSeconds phases = {};        ///< of a step
    nlohmann::json operations = {};  ///< of one more step, where they are asked for
};

/// The rates of `perigee check` for a GPU of this name, or of one like it.
std::optional<DeviceRates> rates_of(RunOptions const& options, std::string const& device, FileSystem& files) {
    if (!takes_gpu(options.device)) return std::nullopt;
    for (char const* const name : {"H100", "A100"})
        if (device.find(name) != std::string::npos)
            return device_rates(name == std::string("H100") ? "h100" : "a100", files);
    return device_rates("h200", files);
}

/// Which group on the axis this rank is in: no other has its number.
int group_of(Mesh const& mesh, Axis axis) {
    int const dp = mesh.dp_rank(), cp = mesh.cp_rank(), tp = mesh.tp_rank();
    MeshShape const shape = mesh.shape();
    switch (axis) {
        case Axis::data:
            return cp * shape.tp + tp;
        case Axis::context:
            return dp * shape.tp + tp;
        case Axis::tensor:
            return dp * shape.cp + cp;
        case Axis::data_context:
            return tp;
        default:
            return 0;
    }
}

/// Nothing if the ranks of a group counted their waits differently.
std::optional<double> sum_of_least(std::vector<std::vector<double>> const& of_ranks) {
    std::vector<double> least = of_ranks.front();
    for (std::vector<double> const& waits : of_ranks) {
        if (waits.size() != least.size()) return std::nullopt;
        for (size_t i = 0; i < waits.size(); ++i) least[i] = std::min(least[i], waits[i]);
    }
    return std::reduce(least.begin(), least.end());
}

/// From the waits of this rank in so many steps, by axis.
Waits gather_waits(std::map<int, std::vector<double>> const& own, double steps, Mesh const& mesh, HostComm& world) {
    Waits waits{.of_ranks = std::vector<double>(static_cast<size_t>(world.size()))};
    std::map<std::string, std::vector<double>> by_axis;
    for (Axis const axis : {Axis::all, Axis::data, Axis::context, Axis::tensor, Axis::data_context}) {
        auto const found = own.find(static_cast<int>(axis));
        auto const mine = found == own.end() ? std::vector<double>() : found->second;
        std::map<int, std::vector<std::vector<double>>> by_group;
        std::vector<double> sums;
        for (std::string const& text : world.gather_text(nlohmann::json{group_of(mesh, axis), mine}.dump())) {
            auto const rank = nlohmann::json::parse(text);
            by_group[rank[0]].push_back(rank[1]);
            std::vector<double> const& its = by_group[rank[0]].back();
            sums.push_back(std::reduce(its.begin(), its.end()) / steps);
        }
        std::ranges::transform(waits.of_ranks, sums, waits.of_ranks.begin(), std::plus());
        if (std::ranges::max(sums) == 0) continue;
        by_axis[to_string(axis)] = sums;
        std::optional<double> least = 0;
        for (auto const& [group, of_ranks] : by_group) {
            auto const of_group = sum_of_least(of_ranks);
            least = least && of_group ? std::optional(*least + *of_group) : std::nullopt;
        }
        if (least) waits.of_links[to_string(axis)] = *least / steps / static_cast<double>(by_group.size());
    }
    auto const slowest = static_cast<size_t>(std::ranges::min_element(waits.of_ranks) - waits.of_ranks.begin());
    for (auto const& [axis, seconds] : by_axis) {
        waits.mean[axis] = std::reduce(seconds.begin(), seconds.end()) / world.size();
        waits.of_slowest[axis] = seconds[slowest];
    }
    return waits;
}

/// What is known of a run before it is measured.
struct Run {
    RunOptions options = {};
    int world = 1;  ///< ranks of the job
    std::string layout = {};
    std::string device = {};
    int64_t bytes_before = 0;
    bool played = true;
    std::optional<DeviceRates> rates = {};  ///< of a GPU
};

/// `together`: the ranks of the job that are there. take_own_seconds(): what the steps since the last call spent that a
/// real rank would not.
Measured time_steps(Options const& o, Session& session, LabelledOps& ops, Learner& learner, HostComm& together,
                    std::function<double()> const& take_own_seconds) {
    Mesh const& mesh = session.mesh();
    RunOptions const& options = session.options();
    Device& device = session.ops().device();
    int64_t const dp = mesh.shape().dp, first = together.size() > 1 ? mesh.dp_rank() : 0;
    int64_t const micro_batches = options.train.global_batch_size / (options.train.micro_batch_size * dp);
    std::vector<Batch> batches;
    for (int64_t i = 0; i < micro_batches; ++i)
        batches.push_back(random_batch(options, static_cast<uint64_t>(first * micro_batches + i)));
    Measured m;
    RunState state;
    device.phases().start(/*list_communication=*/true);
    auto const step = [&] {
        m.report = learner.step(batches, state);
        m.bytes = std::max(m.bytes, device.used_bytes());
    };
    ops.rehearse(o.rehearse);
    if (o.rehearse) step();
    ops.rehearse(false);
    for (int64_t i = 0; i < o.warmup; ++i) step();
    device.synchronize();
    device.phases().take(), device.phases().take_communication(), take_own_seconds();
    together.barrier();
    auto const start = Clock::now();
    for (int64_t i = 0; i < o.steps; ++i) step();
    device.synchronize();
    int64_t const nanoseconds = std::chrono::nanoseconds(Clock::now() - start).count();
    auto const steps = static_cast<double>(o.steps);
    m.made_up = take_own_seconds() / steps;
    m.seconds = 1e-9 * static_cast<double>(together.max(nanoseconds)) / steps - m.made_up;
    m.bytes = together.max(m.bytes);
    m.phases = device.phases().take();
    for (double& seconds : m.phases) seconds /= steps;
    m.waits = gather_waits(device.phases().take_communication(), steps, mesh, together);
    if (o.operations) {
        device.trace().start(device.queue());
        step();
        m.operations = operation_table(device.trace().stop(device.queue()), ops.reckoned());
    }
    return m;
}

Measured as_phantom(Options const& o, Run const& run, Machine machine, FileSystem& files) {
    RunOptions const& options = run.options;
    PhantomOptions played = phantom_options(options, run.world, o.rank);
    played.bytes_per_second = 1e9 * o.gigabytes_per_second;
    played.latency = 1e-6 * o.microseconds;
    played.traffic = o.traffic;
    LabelledOps making_up(*machine.ops, "made up: ", nullptr);
    Phantom phantom(played, making_up);
    auto const alone = make_single_host_comm();
    auto owned = std::make_unique<LabelledOps>(*machine.ops, "", run.rates ? &*run.rates : nullptr);
    LabelledOps& ops = *owned;
    Session session(options, Mesh(options.parallel, phantom.world(), phantom.groups()), {nullptr, std::move(owned)},
                    files);
    Learner learner(session);
    initialise_phantom(session, learner, 1);
    session.arena().reserve(step_cost(options, run.world).memory.step);
    return time_steps(o, session, ops, learner, *alone, [&] { return phantom.take_own_seconds(); });
}

Measured as_rank(Options const& o, Run const& run, HostComm& world, Machine machine, FileSystem& files) {
    auto owned = std::make_unique<LabelledOps>(*machine.ops, "", run.rates ? &*run.rates : nullptr);
    LabelledOps& ops = *owned;
    Session session(run.options, {nullptr, std::move(owned)}, world, files);
    Learner learner(session);
    learner.initialise(1);
    session.arena().reserve(step_cost(run.options, run.world).memory.step);
    return time_steps(o, session, ops, learner, world, [] { return 0.0; });
}

nlohmann::json milliseconds(std::map<std::string, double> const& seconds) {
    nlohmann::json all = nlohmann::json::object();
    for (auto const& [name, value] : seconds) all[name] = 1e3 * value;
    return all;
}

nlohmann::json to_json(Options const& o, Run const& run, StepCost const& predicted, Measured const& m) {
    constexpr std::pair<char const*, Phase> kPhases[] = {{"forward", Phase::forward},
                                                         {"backward", Phase::backward},
                                                         {"communication", Phase::communication},
                                                         {"optimizer", Phase::optimizer}};
    std::map<std::string, double> phases;
    for (auto const& [name, phase] : kPhases) phases[name] = m.phases[static_cast<size_t>(phase)];
    nlohmann::json all{{"row", o.row},
                       {"of", run.layout},
                       {"ranks", run.world},
                       {"device", run.device},
                       {"shard", to_string(run.options.parallel.shard)},
                       {"recompute", run.options.train.recompute},
                       {"offload", run.options.train.offload},
                       {"mlp_chunk", run.options.train.mlp_chunk},
                       {"overrides", o.overrides},
                       {"tokens_per_s_per_gpu", static_cast<double>(m.report.tokens) / m.seconds / run.world},
                       {"seconds", m.seconds},
                       {"made_up_ms", 1e3 * m.made_up},
                       {"steps", o.steps},
                       {"bytes", m.bytes},
                       {"bytes_before", run.bytes_before},
                       {"predicted_bytes", predicted.memory.in_use()},
                       {"predicted_seconds", predicted.time.step},
                       {"exposed_ms", milliseconds(m.waits.mean)},
                       {"exposed_ms_of_slowest", milliseconds(m.waits.of_slowest)},
                       {"exposed_ms_of_links", milliseconds(m.waits.of_links)},
                       {"predicted_exposed_ms", milliseconds(predicted.time.exposed)},
                       {"phases_ms", milliseconds(phases)},
                       {"attended_share", m.report.attended_share.value_or(1)},
                       {"loss", m.report.loss}};
    if (run.played) {
        all["rank"] = o.rank;
        all["link_gb_s"] = o.gigabytes_per_second;
        all["latency_us"] = o.microseconds;
        all["traffic"] = o.traffic;
    } else {
        for (double const seconds : m.waits.of_ranks) all["exposed_ms_of_ranks"].push_back(1e3 * seconds);
    }
    return all;
}

void print(Options const& o, Run const& run, StepCost const& predicted, Measured const& m) {
    double const rate = static_cast<double>(m.report.tokens) / m.seconds / run.world;
    std::string const who = run.played ? fmt::format("rank {} of {}", o.rank, run.layout) : run.layout;
    fmt::print("{}{}, {} ({} ranks) on {}, shard {}\n", o.row.empty() ? "" : o.row + ": ", o.config, who, run.world,
               run.device, to_string(run.options.parallel.shard));
    fmt::print("step            {:10.2f} ms  {:10.0f} tokens/s a GPU  attended {:.4f}  loss {:.4f}\n", 1e3 * m.seconds,
               rate, m.report.attended_share.value_or(1), m.report.loss);
    fmt::print("memory in use   {}, {} of them before; check says {}\n", format_bytes(m.bytes),
               format_bytes(run.bytes_before), format_bytes(predicted.memory.in_use()));
    if (run.played)
        fmt::print("links played at {} GB/s and {} us{}\n", o.gigabytes_per_second, o.microseconds,
                   o.traffic ? ", bytes moved in memory" : "");
    auto const axes = [](char const* title, std::map<std::string, double> const& seconds) {
        fmt::print("{}", title);
        for (auto const& [axis, of_axis] : seconds) fmt::print("  {} {:.2f} ms", axis, 1e3 * of_axis);
        fmt::print("\n");
    };
    axes("exposed        ", m.waits.mean);
    axes("of the slowest ", m.waits.of_slowest);
    axes("of links alone ", m.waits.of_links);
    axes("check says     ", predicted.time.exposed);
    print_operations(m.operations);
    if (o.json) fmt::print("{}\n", to_json(o, run, predicted, m).dump());
}

/// What `auto` means for a rank that is played: by this device's memory, as for `perigee train`.
void decide(RunOptions& options, int world) {
    int64_t const there = memory_for_a_step(options, 1).bytes;
    if (options.parallel.shard == ShardStage::automatic)
        options.parallel.shard = first_stage_that_fits(options, world, there);
    if (options.train.recompute == kRecomputeAuto)
        options.train.recompute = to_string(recompute_that_fits(options, world, there));
    if (options.train.offload == kOffloadAuto) options.train.offload = offload_that_fits(options, world, there);
}

Run prepare_phantom(Options const& o, FileSystem& files) {
    Run run{.layout = o.layout.empty() ? "one" : o.layout};
    RunOptions typed = load_config(o.config, o.overrides);
    run.world = o.layout.empty() ? 1 : set_layout(o.layout, typed.parallel);
    refuse_problems(typed, run.world, o.config);
    run.options = resolve(typed, 1, files);
    decide(run.options, run.world);
    return run;
}

Run prepare_job(Options const& o, Launch& launch, FileSystem& files) {
    HostComm& world = launch.world();
    if (!o.layout.empty()) fail(Category::config, "--of plays a job in one process, not in {} ranks", world.size());
    Run run{.world = world.size(), .played = false};
    RunOptions typed = load_config(o.config, o.overrides);
    refuse_problems(typed, world.size(), o.config);
    Seat const seat = take_seat(typed, launch);
    if (typed.threads == 0) typed.threads = seat.cores;
    typed.gpu = std::max(seat.gpu, 0);
    int const local = launch.local_size();
    RunOptions const resolved = resolve(typed, local, files);
    run.options = with_memory_policy_decided(with_stage_decided(resolved, world, local), world, local);
    check_fits(run.options, world.size(), local);
    MeshShape const shape = resolve_mesh(run.options.parallel, world.size());
    run.layout = fmt::format("dp={},cp={},tp={}", shape.dp, shape.cp, shape.tp);
    return run;
}

void measure(Options const& o, Launch& launch) {
    auto const files = make_file_system();
    bool const job = launch.world().size() > 1;
    Run run = job ? prepare_job(o, launch, *files) : prepare_phantom(o, *files);
    Machine machine = make_machine(run.options);
    run.device = machine.device->name();
    run.bytes_before = machine.device->used_bytes();
    run.rates = rates_of(run.options, run.device, *files);
    Measured const m = job ? as_rank(o, run, launch.world(), std::move(machine), *files)
                           : as_phantom(o, run, std::move(machine), *files);
    if (launch.world().rank() > 0) return;
    std::optional<int> const rank = run.played ? std::optional(o.rank) : std::nullopt;
    print(o, run, step_cost(run.options, run.world, run.rates ? &*run.rates : nullptr, rank), m);
}

}  // namespace

}  // namespace perigee

int main(int argc, char** argv) {
    perigee::Launch launch(&argc, &argv);
    CLI::App app("Times training steps of a job, or as one rank of a job.");
    try {
        perigee::measure(perigee::parse(app, argc, argv), launch);
        return 0;
    } catch (CLI::ParseError const& e) {
        return app.exit(e);
    } catch (std::exception const& e) {
        if (launch.world().size() == 1) return perigee::report_failure("bench_train", e);
        launch.abort(perigee::as_error(e).exit_code(), e.what());
    }
}
