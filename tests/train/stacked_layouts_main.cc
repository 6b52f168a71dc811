// Training steps of every layout, by ranks that share one GPU or have one each: up to 8 processes, of which each cell
// takes as many as its layout has. Loss, every gradient and every selected block are compared with fp32 on the CPU, and
// the errors of gradients and selections with those of one rank on the GPU. Prints a line per cell; exit code 1 where
// one fails.
//   mpirun -n N stacked_layouts [--cpu] [--json]
// --json: after each cell's line an object with its loss and a digest of the bits of loss and gradients.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <set>

#include "comm/launch.h"
#include "config/config.h"
#include "ops/observed_ops.h"
#include "support/ragged_samples.h"
#include "support/random.h"
#include "train/learner.h"

namespace perigee::testing {

namespace {

constexpr RaggedSamples kData{.samples = 32, .length = 512, .vocab = 512};
constexpr int64_t kTokens = kData.samples * kData.length;
constexpr double kLossTolerance = 1e-3;  ///< relative, between layouts on the GPU
constexpr double kErrorGrowth = 1.25;    ///< of gradients' and selections' errors, from one rank to several
/// Of two blocks' scores in fp32, as cosines between query and centroid. In bf16 a later layer's queries and keys
/// follow from the selections of earlier ones, so that its ties are as near as those of one rank.
constexpr double kNearTie = 0.01;
constexpr double kBf16Error = 0.15;  ///< of one rank's gradients on the GPU, relative to the CPU's in fp32

struct Cell {
    int dp = 1, cp = 1, tp = 1;
    ContextMode mode = ContextMode::automatic;
    int head_groups = 1;
    ShardStage shard = ShardStage::optimizer;
    int accumulation = 1;
    CommChoice comm = CommChoice::automatic;
    DeviceChoice device = DeviceChoice::cuda;
    bool deterministic = true;

    int ranks() const { return dp * cp * tp; }
    std::string str() const {
        char const* const modes[] = {"auto", "ulysses", "allgather"};
        char const* const context = cp == 1 ? "-" : modes[static_cast<int>(mode)];
        char const* const shards[] = {"auto", "none", "optimizer", "gradients", "weights"};
        return fmt::format("{} {} {}  {:9} {}  {:9} {}  {}", dp, cp, tp, context, head_groups,
                           shards[static_cast<int>(shard)], accumulation,
                           device == DeviceChoice::cpu ? "cpu "
                           : comm == CommChoice::mpi   ? "mpi "
                                                       : "nccl");
    }
};

/// Every (dp, cp, tp) of 2 and 4 ranks and four of 8, each twice with opposite options: every pair of options, and
/// every option with every layout, comes at least once.
std::vector<Cell> cells() {
    constexpr int kLayouts[][3] = {{2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {4, 1, 1}, {1, 4, 1}, {1, 1, 4}, {2, 2, 1},
                                   {2, 1, 2}, {1, 2, 2}, {8, 1, 1}, {2, 2, 2}, {2, 4, 1}, {1, 2, 4}};
    constexpr ShardStage stages[] = {ShardStage::none, ShardStage::optimizer, ShardStage::gradients,
                                     ShardStage::weights};
    std::vector<Cell> all;
    for (int i = 0; auto const [dp, cp, tp] : kLayouts) {
        for (int half : {0, 7}) {
            int const bits = (i * 3 % 8) ^ half;
            all.push_back({.dp = dp,
                           .cp = cp,
                           .tp = tp,
                           .mode = (half != 0) != (i % 2 != 0) ? ContextMode::allgather : ContextMode::ulysses,
                           .shard = stages[(bits & 1) + 2 * (i % 2)],
                           .accumulation = (bits & 2) != 0 ? 4 : 1,
                           .comm = (bits & 4) != 0 ? CommChoice::mpi : CommChoice::nccl});
        }
        ++i;
    }
    // Block-sparse layers by allgather and full ones by ulysses.
    for (Cell const& mixed : {Cell{.cp = 2, .shard = ShardStage::weights, .comm = CommChoice::nccl},
                              {.cp = 4, .shard = ShardStage::none, .accumulation = 4, .comm = CommChoice::mpi},
                              {.dp = 2, .cp = 2, .tp = 2, .shard = ShardStage::gradients, .comm = CommChoice::nccl}})
        all.push_back(mixed);
    // Gathered keys and values in groups of heads.
    for (Cell const& grouped :
         {Cell{.cp = 2, .mode = ContextMode::allgather, .head_groups = 2, .comm = CommChoice::nccl},
          {.cp = 4, .head_groups = 8, .shard = ShardStage::weights, .accumulation = 4, .comm = CommChoice::mpi},
          {.dp = 2, .cp = 2, .tp = 2, .head_groups = 2, .shard = ShardStage::gradients, .comm = CommChoice::nccl}})
        all.push_back(grouped);
    // As a user trains: the fastest kernels.
    for (Cell fast : {Cell{.dp = 2}, Cell{.cp = 2, .mode = ContextMode::allgather}, Cell{.cp = 2},
                      Cell{.cp = 2, .mode = ContextMode::allgather, .head_groups = 4}}) {
        fast.deterministic = false;
        all.push_back(fast);
    }
    return all;
}

RunOptions options_of(Cell const& cell) {
    RunOptions options = parse_config(R"(
model: {vocab_size: 512, hidden_size: 256, intermediate_size: 512, num_hidden_layers: 3, num_attention_heads: 16,
        num_key_value_heads: 8, head_dim: 64, rope_theta: 10000}
attention: {kind: moba, block_size: 64, top_k: 3, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 512}
train: {steps: 1, global_batch_size: 32, micro_batch_size: 1}
)",
                                      "stacked layouts", {});
    options.device = cell.device;
    options.deterministic = cell.deterministic;
    options.threads = 8;
    options.parallel.data = cell.dp;
    options.parallel.context = cell.cp;
    options.parallel.tensor = cell.tp;
    options.parallel.context_mode = cell.mode;
    options.parallel.head_groups = cell.head_groups;
    options.parallel.shard = cell.shard;
    options.parallel.comm = cell.comm;
    options.parallel.share_gpu = cell.ranks() > cuda_device_count();
    options.parallel.bucket_mib = 4;
    return options;
}

/// What all ranks' choices are noted in: [layer][token][head][slot], block + 2, 0 where nobody has chosen.
struct Routing {
    static constexpr int64_t kLayers = 2, kHeads = 16, kSlots = 2;
    std::vector<int32_t> chosen = std::vector<int32_t>(static_cast<size_t>(kLayers * kTokens * kHeads * kSlots));
    static size_t at(int64_t layer, int64_t token, int64_t head) {
        return static_cast<size_t>(((layer * kTokens + token) * kHeads + head) * kSlots);
    }
    std::set<int32_t> blocks(int64_t layer, int64_t token, int64_t head) const {
        auto const first = chosen.begin() + static_cast<int64_t>(at(layer, token, head));
        return {first, first + kSlots};
    }
};

/// Queries and keys of a layer of the CPU's pass, by which differences in the choice are judged.
struct GateInputs {
    std::vector<float> q_THK, k_TGK;
};

/// Notes the blocks that its gates select, as those of the whole model and batch.
class RecordingOps final : public ObservedOps {
  public:
    explicit RecordingOps(std::unique_ptr<Ops> inner) : ObservedOps(*inner), owned_(std::move(inner)) {}

    void run(Operation const& operation) override {
        ObservedOps::run(operation);
        if (std::holds_alternative<EmbeddingForward>(operation)) ++batch_, layer_ = -1;
        // Keys may come apart from queries.
        if (auto const* const qkv = std::get_if<QkvForward>(&operation); qkv && qkv->k_TGK.shape[1] > 0) ++layer_;
        if (auto const* const select = std::get_if<SelectBlocks>(&operation)) note(*select);
    }
    void repeat(std::span<int64_t const>, std::function<void()> const& body) override { body(); }

    std::vector<int64_t> first_tokens;  ///< of this rank's micro-batches
    Routing routing = {};
    std::vector<GateInputs> inputs;  ///< of fp32 alone

  private:
    void note(SelectBlocks const& args) {
        TensorView const chosen_THS = args.chosen_THS;
        int64_t const first = first_tokens.at(static_cast<size_t>(batch_));
        std::vector<int32_t> chosen(static_cast<size_t>(chosen_THS.size()));
        download(chosen.data(), chosen_THS);
        for (int64_t i = 0, t = 0; t < chosen_THS[0]; ++t)
            for (int64_t h = 0; h < chosen_THS[1]; ++h) {
                auto const place = Routing::at(layer_, first + args.query_begin + t, args.first_head + h);
                for (size_t s = 0; s < Routing::kSlots; ++s, ++i)
                    routing.chosen.at(place + s) = chosen[static_cast<size_t>(i)] + 2;
            }
        if (compute_dtype() != DType::f32) return;
        auto const floats = [](ConstView x) { return std::vector<float>(x.as<float>(), x.as<float>() + x.size()); };
        inputs.push_back({floats(args.q_THK), floats(args.k_TGK)});
    }

    std::unique_ptr<Ops> owned_;
    int64_t batch_ = -1, layer_ = -1;
};

struct Outcome {
    double loss = 0;
    double grad_norm = 0;
    std::map<std::string, std::vector<float>> grads = {};  ///< whole tensors
    Routing routing = {};
    bool replicas_agree = true;
    std::vector<GateInputs> inputs = {};
    std::vector<int32_t> borders = {};  ///< of all samples in one pack
};

/// Whole tensors from what each rank answers for; says whether ranks that hold the same sums hold the same bits.
bool collect(Session const& session, Learner const& learner, Outcome& outcome) {
    ParamLayout const& layout = session.layout();
    Mesh const& mesh = session.mesh();
    Ownership const& owned = session.sharding().ownership;
    std::vector<float> grads(static_cast<size_t>(layout.size()));
    for (FlatPart const& part : learner.gradients().updated())
        session.ops().download(grads.data() + part.range.begin, part.values);
    auto const holds = [](std::vector<FlatRange> const& ranges, int64_t i) {
        return std::ranges::any_of(ranges, [i](FlatRange r) { return r.begin <= i && i < r.end; });
    };
    bool agree = true;
    for (ParamLayout::Entry const& e : layout.entries()) {
        auto& whole = outcome.grads[e.spec.name];
        whole.assign(static_cast<size_t>(e.spec.shape.size()), 0);
        auto const each = [&](std::vector<FlatRange> const& ranges, auto&& visit) {
            for (Shard::Run const& run : e.shard.runs())
                for (int64_t i = 0; i < run.count; ++i)
                    if (int64_t const flat = e.offset + run.local + i; holds(ranges, flat))
                        visit(whole[static_cast<size_t>(run.global + i)], grads[static_cast<size_t>(flat)]);
        };
        each(owned.owned, [](float& place, float value) { place = value; });
        mesh.world().all_reduce(TensorView(whole.data(), {std::ssize(whole)}));
        each(owned.updated, [&](float const& place, float value) { agree &= place == value; });
    }
    return !mesh.world().any(!agree);
}

Machine machine_of(Cell const& cell, RunOptions const& options, HostComm& world) {
    Machine machine;
    if (cell.device == DeviceChoice::cpu) {
        machine.device = make_host_device();
        machine.ops = make_host_ops(*machine.device, static_cast<int>(options.threads));
    } else {
        machine.device = make_cuda_device(world.rank() % cuda_device_count());
        machine.ops = make_cuda_ops(*machine.device, cuda_options(options));
    }
    return machine;
}

Outcome run(Cell const& cell, HostComm& world) {
    RunOptions const options = options_of(cell);
    auto const files = make_file_system();
    Machine machine = machine_of(cell, options, world);
    auto recording = std::make_unique<RecordingOps>(std::move(machine.ops));
    RecordingOps& ops = *recording;
    machine.ops = std::move(recording);
    Session session(options, std::move(machine), world, *files);
    Learner learner(session);
    learner.initialise(1);
    session.ops().device().synchronize();  // gathers of the initial weights may still write where others are put
    std::vector<float> weights = weights_of(session.layout(), 0.05);
    std::vector<bf16> rounded(weights.size());
    std::ranges::transform(weights, rounded.begin(), to_bf16);
    std::ranges::transform(rounded, weights.begin(), [](bf16 x) { return to_float(x); });  // equal on CPU and GPU
    bool const on_cpu = ops.compute_dtype() == DType::f32;
    for (auto const& [range, values] : session.weights().parts())
        ops.upload(values,
                   on_cpu ? static_cast<void const*>(weights.data() + range.begin) : rounded.data() + range.begin);
    session.weights().loaded();

    int64_t const micro = kData.samples / (cell.dp * cell.accumulation);
    std::vector<Batch> batches;
    for (int64_t i = 0; i < cell.accumulation; ++i) {
        int64_t const first = (i * cell.dp + session.mesh().dp_rank()) * micro;
        batches.emplace_back();
        for (int64_t s = 0; s < micro; ++s) kData.append(batches.back(), first + s);
        ops.first_tokens.push_back(first * kData.length);
    }
    RunState state;
    StepReport const report = learner.step(batches, state);
    Outcome outcome{.loss = report.loss, .grad_norm = report.grad_norm};
    outcome.replicas_agree = collect(session, learner, outcome);
    outcome.routing = std::move(ops.routing);
    auto& chosen = outcome.routing.chosen;  // tp ranks and ulysses' have other heads, the rest the same ones
    world.all_reduce(TensorView(chosen.data(), {std::ssize(chosen)}), Reduce::max);
    outcome.inputs = std::move(ops.inputs);
    if (cell.ranks() * cell.accumulation == 1) outcome.borders = batches.front().cu_seqlens;
    return outcome;
}

/// How another choice of blocks differs from that of fp32.
struct RoutingError {
    int64_t differing = 0;  ///< of all queries and heads
    double widest = 0;      ///< difference of the scores that changed places
};

/// Centroid scores of fp32 as cosines.
class Judge {
  public:
    explicit Judge(Outcome const& cpu) : cpu_(cpu) {}

    RoutingError compare(Routing const& other) const {
        RoutingError error;
        for (int64_t layer = 0; layer < Routing::kLayers; ++layer)
            for (int64_t t = 0; t < kTokens; ++t)
                for (int64_t h = 0; h < Routing::kHeads; ++h) {
                    auto const want = cpu_.routing.blocks(layer, t, h), got = other.blocks(layer, t, h);
                    if (want == got) continue;
                    ++error.differing;
                    for (int32_t const missed : want)
                        for (int32_t const taken : got)
                            if (!got.contains(missed) && !want.contains(taken))
                                error.widest = std::max(error.widest,
                                                        score(layer, t, h, missed - 2) - score(layer, t, h, taken - 2));
                }
        return error;
    }

  private:
    /// -infinity for what no gate could have chosen.
    double score(int64_t layer, int64_t t, int64_t h, int64_t block) const {
        constexpr int64_t kDim = 64, kBlock = 64, kGroup = 2;
        GateInputs const& in = cpu_.inputs.at(static_cast<size_t>(layer));
        int64_t const document = *std::prev(std::ranges::upper_bound(cpu_.borders, static_cast<int32_t>(t)));
        int64_t const first = document + block * kBlock;
        if (block < 0 || first + kBlock > t) return -std::numeric_limits<double>::infinity();
        double dot = 0, qq = 0, cc = 0;
        for (int64_t i = 0; i < kDim; ++i) {
            double c = 0;
            for (int64_t k = first; k < first + kBlock; ++k)
                c += in.k_TGK[static_cast<size_t>((k * Routing::kHeads / kGroup + h / kGroup) * kDim + i)];
            double const q = in.q_THK[static_cast<size_t>((t * Routing::kHeads + h) * kDim + i)];
            dot += q * c, qq += q * q, cc += c * c;
        }
        return dot / std::sqrt(qq * cc);
    }

    Outcome const& cpu_;
};

/// FNV-1a of the bits of a cell's numbers.
uint64_t digest_of(Outcome const& outcome) {
    uint64_t digest = 0xcbf29ce484222325;
    auto const add = [&](void const* data, size_t bytes) {
        for (size_t i = 0; i < bytes; ++i)
            digest = (digest ^ static_cast<unsigned char const*>(data)[i]) * 0x100000001b3;
    };
    add(&outcome.loss, sizeof outcome.loss);
    add(&outcome.grad_norm, sizeof outcome.grad_norm);
    for (auto const& [name, grad] : outcome.grads) add(grad.data(), grad.size() * sizeof(float));
    return digest;
}

using Errors = std::map<std::string, double>;
Errors errors_of(Outcome const& outcome, Outcome const& cpu) {
    Errors errors;
    for (auto const& [name, grad] : cpu.grads) errors[name] = relative_error(outcome.grads.at(name), grad);
    return errors;
}

struct References {
    Outcome cpu, one;      ///< one rank on the CPU and on the GPU
    Errors errors;         ///< of the latter's gradients
    RoutingError routing;  ///< of its selections
};

/// Prints the cell's line; says whether all is within its limits.
bool hold(Cell const& cell, Outcome const& outcome, References const& want, double seconds) {
    std::string worst;
    double growth = 0;
    for (auto const& [name, error] : errors_of(outcome, want.cpu))
        if (double const ratio = error / want.errors.at(name); !(ratio <= growth)) growth = ratio, worst = name;
    RoutingError const routing = Judge(want.cpu).compare(outcome.routing);
    double const loss = std::abs(outcome.loss / want.one.loss - 1);
    double const most_differing = kErrorGrowth * static_cast<double>(want.routing.differing) + 16;
    bool const good = loss <= kLossTolerance && growth <= kErrorGrowth &&
                      routing.widest <= std::max(kNearTie, kErrorGrowth * want.routing.widest) &&
                      static_cast<double>(routing.differing) <= most_differing && outcome.replicas_agree;
    std::printf("%s  %.1e  %.3f %-48s %6ld %.4f  %5.1f s  %s%s\n", cell.str().c_str(), loss, growth, worst.c_str(),
                routing.differing, routing.widest, seconds, good ? "ok" : "FAILED",
                outcome.replicas_agree ? "" : ", replicas differ");
    std::fflush(stdout);
    return good;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

References make_references(bool on_gpu) {
    auto const alone = make_single_host_comm();
    References want;
    auto const begin = std::chrono::steady_clock::now();
    want.cpu = run({.device = DeviceChoice::cpu}, *alone);
    double const cpu_seconds = seconds_since(begin);
    want.one = run({.device = on_gpu ? DeviceChoice::cuda : DeviceChoice::cpu}, *alone);
    want.errors = errors_of(want.one, want.cpu);
    constexpr double kRounding = 3e-5;  // of fp32: tests/parallel/layout_test.cc
    if (!on_gpu)
        for (auto& [name, error] : want.errors) error = kRounding / kErrorGrowth;
    double highest = 0;
    for (auto const& [name, error] : want.errors) {
        PERIGEE_CHECK(error <= kBf16Error, "one rank's gradient of {} is {} off: nothing to compare layouts with", name,
                      error);
        highest = std::max(highest, error);
    }
    want.routing = Judge(want.cpu).compare(want.one.routing);
    std::printf(
        "one rank: loss %.6f on the CPU in %.1f s, %.6f on the GPU in %.1f s, gradients' errors up to %.4f, "
        "%ld of %ld selections differ by %.4f at most\n",
        want.cpu.loss, cpu_seconds, want.one.loss, seconds_since(begin) - cpu_seconds, highest, want.routing.differing,
        Routing::kLayers * kTokens * Routing::kHeads, want.routing.widest);
    std::printf(
        "dp cp tp, mode, head groups, shard, accumulation, comm | loss | gradients | selections: differing, widest | "
        "time\n");
    return want;
}

/// Number of cells that fail, on rank 0.
int run_all(HostComm& world, bool on_gpu, bool json) {
    References want;
    if (world.rank() == 0) want = make_references(on_gpu);
    std::map<int, std::unique_ptr<HostComm>> parts;
    for (int ranks : {2, 4, 8})
        if (ranks <= world.size()) parts[ranks] = world.split(world.rank() < ranks ? 0 : 1, world.rank());
    int failed = 0;
    for (Cell cell : cells()) {
        if (cell.ranks() > world.size()) continue;
        if (!on_gpu) cell.device = DeviceChoice::cpu, cell.comm = CommChoice::mpi;
        world.barrier();
        if (world.rank() >= cell.ranks()) continue;
        auto const begin = std::chrono::steady_clock::now();
        Outcome const outcome = run(cell, *parts.at(cell.ranks()));
        if (world.rank() > 0) continue;
        failed += !hold(cell, outcome, want, seconds_since(begin));
        if (!json) continue;
        std::printf(R"({"cell":"%s","loss":%.17g,"digest":"%016lx"})"
                    "\n",
                    cell.str().c_str(), outcome.loss, digest_of(outcome));
        std::fflush(stdout);
    }
    world.barrier();
    return failed;
}

}  // namespace

}  // namespace perigee::testing

int main(int argc, char** argv) {
    perigee::Launch launch(&argc, &argv);
    try {
        std::set<std::string_view> const said(argv + 1, argv + argc);
        int64_t failed = perigee::testing::run_all(launch.world(), !said.contains("--cpu"), said.contains("--json"));
        failed = launch.world().max(failed);
        if (launch.world().rank() == 0) std::printf("%s\n", failed == 0 ? "all cells passed" : "cells failed");
        return failed > 0;
    } catch (std::exception const& e) {
        launch.abort(perigee::as_error(e).exit_code(), e.what());
    }
}
