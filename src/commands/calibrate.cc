// Measures the rates that `perigee check --device FILE` reckons with, on the GPU of this machine:
//   perigee calibrate FILE [--seconds S] [--shrink N]

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>

#include "base/log.h"
#include "commands/bench/measure.h"
#include "commands/command.h"
#include "commands/number_between.h"
#include "config/device_rates.h"
#include "train/session.h"

namespace perigee {

namespace {

struct CalibrateOptions {
    std::string file;
    double seconds = 1;
    int64_t shrink = 1;
};

/// Heads of an attention and the documents that it works on.
struct AttentionShape {
    int64_t documents, length, heads, kv_heads, head_dim;
    int64_t ranks = 1;  ///< share the tokens of one document, and the last one's queries are there
};

class Calibration {
  public:
    Calibration(CalibrateOptions const& options, Ops& ops) : options_(options), ops_(&ops), arena_(ops.device()) {}

    double products() {
        Arena::Scope const scope(arena_);
        int64_t const m = of(8192), n = of(14336), k = of(4096);
        TensorView const a = tensor({m, k}), b = tensor({n, k}), c = tensor({m, n});
        double const flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
        return 1e-12 * flops / sustained([&] { ops_->matmul({.c = c, .a = a, .b = b, .transpose_b = true}); });
    }

    double memory() {
        Arena::Scope const scope(arena_);
        TensorView const from = tensor({of(int64_t{1} << 29)}), to = tensor({of(int64_t{1} << 29)});
        return 2e-9 * static_cast<double>(to.bytes()) / sustained([&] { ops_->copy(to, from); });
    }

    struct Speeds {
        double forward = 0, backward = 0, choice = 0;  ///< TFLOP/s
    };
    Speeds attention(AttentionShape const& shape, Selection const& selection = FullAttention{}) {
        Arena::Scope const scope(arena_);
        auto const [documents, full_length, H, G, K, ranks] = shape;
        int64_t const length = of(full_length), T = documents * length, begin = T - T / ranks;
        std::vector<int32_t> borders;
        for (int64_t i = 0; i <= documents; ++i) borders.push_back(static_cast<int32_t>(i * length));
        auto const queries = [&] { return tensor({T - begin, H, K}); };
        auto const keys = [&] { return tensor({T, G, K}); };
        AttentionForward forward;
        forward.q_THK = queries(), forward.k_TGK = keys(), forward.v_TGK = keys(), forward.query_begin = begin;
        TensorView const o = queries(), lse = arena_.allocate("lse", ops_->main_dtype(), {T - begin, H});
        forward.o_THK = o, forward.lse_TH = lse;
        forward.cu_seqlens = borders;
        forward.scale = 1 / std::sqrt(static_cast<double>(K));
        Speeds speeds;
        auto const budget = budget_of(selection);
        double const width = 1e-12 * static_cast<double>(documents * H * K);
        if (budget)
            speeds.choice = 2 * width * pairs(begin, length, std::nullopt) / static_cast<double>(budget->block_size) /
                            choose(forward, selection, *budget);
        double const scores = width * pairs(begin, length, budget);
        speeds.forward = 4 * scores / sustained([&] { ops_->attention_forward(forward); });
        AttentionBackward backward{.dq_THK = queries(),
                                   .dk_TGK = keys(),
                                   .dv_TGK = keys(),
                                   .do_THK = queries(),
                                   .q_THK = forward.q_THK,
                                   .k_TGK = forward.k_TGK,
                                   .v_TGK = forward.v_TGK,
                                   .o_THK = o,
                                   .lse_TH = lse,
                                   .cu_seqlens = borders,
                                   .scale = forward.scale,
                                   .attended = forward.attended,
                                   .query_begin = begin};
        speeds.backward = 10 * scores / sustained([&] { ops_->attention_backward(backward); });
        return speeds;
    }

    int64_t of(int64_t size) const { return std::max<int64_t>(size / options_.shrink, 16); }

  private:
    TensorView tensor(Shape shape) { return random_tensor(*ops_, arena_, ops_->compute_dtype(), shape, ++tensors_); }

    /// Mean seconds of a call, over calls that fill the time; one before does not count.
    double sustained(std::function<void()> const& call) {
        call();
        ops_->device().synchronize();
        auto const start = Clock::now();
        int64_t calls = 0;
        do {
            call();
            ops_->device().synchronize();
            ++calls;
        } while (seconds_since(start) < options_.seconds);
        return seconds_since(start) / static_cast<double>(calls);
    }

    /// Seconds of the choice; `forward` attends to what is chosen.
    double choose(AttentionForward& forward, Selection const& selection, BlockBudget const& budget) {
        Shape const& q = forward.q_THK.shape;
        TensorView const chosen = arena_.allocate("chosen", DType::i32, {q[0], q[1], budget.slots()});
        TensorView routing;
        int64_t const numbers = ops_->routing_size(q, forward.k_TGK.shape, forward.cu_seqlens, budget);
        if (numbers > 0) routing = arena_.allocate("routing", DType::i32, {numbers});
        forward.attended = BlockSparse{.budget = budget, .chosen_THS = chosen, .routing_L = routing};
        return sustained([&] {
            ops_->select_blocks({.chosen_THS = chosen,
                                 .q_THK = forward.q_THK,
                                 .k_TGK = forward.k_TGK,
                                 .cu_seqlens = forward.cu_seqlens,
                                 .selection = selection,
                                 .query_begin = forward.query_begin});
        });
    }

    /// Keys that a document's queries from `begin` on attend; all of several documents have begin 0.
    static double pairs(int64_t begin, int64_t length, std::optional<BlockBudget> const& budget) {
        double sum = 0;
        for (int64_t t = begin; t < length; ++t) {
            int64_t const before = budget ? std::min(t / budget->block_size, budget->slots()) : 0;
            sum += static_cast<double>(budget ? before * budget->block_size + t % budget->block_size + 1 : t + 1);
        }
        return sum;
    }

    CalibrateOptions const& options_;
    Ops* ops_;
    Arena arena_;
    uint64_t tensors_ = 0;
};

/// Of three digits.
DeviceRate measured(double value) { return {std::stod(fmt::format("{:.3g}", value)), RateSource::measured}; }

void calibrate(CalibrateOptions const& options, FileSystem& files) {
    Machine machine = make_machine(RunOptions{});
    if (machine.device->is_host() && options.shrink == 1)
        fail(Category::config,
             "no GPU here: calibrate measures a GPU; --shrink N divides its sizes, to try the command on a CPU");
    if (options.shrink > 1)
        log::warn("sizes are divided by {}: these rates are there to try the command, not for perigee check",
                  options.shrink);
    Calibration here(options, *machine.ops);
    DeviceRates rates = device_rates("h200", files);
    rates.assume_all();
    rates.name = machine.device->name();
    rates.hopper = !machine.device->is_host() && cuda_compute_major(0) == kHopperMajor;
    if (machine.device->total_bytes() > 0)
        rates.memory_gib = static_cast<double>(machine.device->total_bytes()) / 1073741824.0;
    rates.products = measured(here.products());
    rates.memory = measured(here.memory());
    auto const full = [&](AttentionShape const& shape, DeviceRate& forward, DeviceRate& backward) {
        auto const speeds = here.attention(shape);
        forward = measured(speeds.forward), backward = measured(speeds.backward);
    };
    full({32, 1024, 32, 8, 128}, rates.full_forward_1k, rates.full_backward_1k);
    full({4, 8192, 32, 8, 128}, rates.full_forward_8k, rates.full_backward_8k);
    full({1, 32768, 32, 8, 128}, rates.full_forward_32k, rates.full_backward_32k);
    full({1, 131072, 8, 2, 128}, rates.full_forward_128k, rates.full_backward_128k);
    auto const small = here.attention({4, 8192, 32, 8, 64});
    rates.small_heads_forward = measured(small.forward / rates.full_forward_8k.value);
    rates.small_heads_backward = measured(small.backward / rates.full_backward_8k.value);
    auto const moba = here.attention({1, 131072, 8, 2, 128}, MobaOptions{.block_size = here.of(512), .top_k = 8});
    rates.moba_forward = measured(moba.forward), rates.moba_backward = measured(moba.backward);
    rates.moba_choice = measured(moba.choice);
    MobaOptions const larger{.block_size = here.of(4096), .top_k = 12};
    AttentionShape const one_rank{1, 131072, 8, 2, 128}, last_rank{1, 524288, 8, 2, 128, 4};
    rates.moba_gathered_backward =
        measured(here.attention(last_rank, larger).backward / here.attention(one_rank, larger).backward);
    files.replace_text(options.file, to_yaml(rates));
    fmt::print("{}", to_yaml(rates));
}

}  // namespace

Action declare_calibrate(CLI::App& app) {
    auto const options = std::make_shared<CalibrateOptions>();
    app.add_option("FILE", options->file, "YAML file to write, for perigee check --device FILE")->required();
    app.add_option("--seconds", options->seconds, "for each rate")->check(number_between(0, 3600));
    app.add_option("--shrink", options->shrink, "divides sizes, to try the command where there is no GPU")
        ->check(CLI::Range(1, 1 << 12));
    return [options](FileSystem& files) {
        calibrate(*options, files);
        return 0;
    };
}

}  // namespace perigee
