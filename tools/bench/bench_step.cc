// Time of a training step on the CPU: random tokens, forward, backward, gradient norm and AdamW. Prints tokens/s, the
// share of the step inside OpenBLAS, its speed beside plain matrix products on the same cores, and a table of
// operations. With --json, the last line is one JSON object.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/philox.h"
#include "comm/host_comm.h"
#include "commands/bench/timed_ops.h"
#include "model/llama.h"
#include "ops/host/blas.h"

namespace perigee {

namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Options {
    ModelOptions model{.vocab_size = 320, .num_key_value_heads = 2, .head_dim = 64};
    MobaOptions moba{.block_size = 64, .top_k = 3};
    bool sparse = false;
    std::vector<Selection> selections() const {
        Selection const one = sparse ? Selection(moba) : Selection(FullAttention{});
        return std::vector(static_cast<size_t>(model.num_hidden_layers), one);
    }
    int64_t sequence = 512;
    int64_t batch = 8;
    int64_t steps = 10;
    int threads = 0;
    bool json = false;
};

Options parse(CLI::App& app, int argc, char** argv) {
    Options o;
    std::string kind = "full";
    app.add_option("--hidden", o.model.hidden_size);
    app.add_option("--layers", o.model.num_hidden_layers);
    app.add_option("--heads", o.model.num_attention_heads);
    app.add_option("--kv-heads", o.model.num_key_value_heads);
    app.add_option("--head-dim", o.model.head_dim);
    app.add_option("--intermediate", o.model.intermediate_size);
    app.add_option("--vocab", o.model.vocab_size);
    app.add_flag("--tied", o.model.tie_word_embeddings, "one matrix for embedding and classifier");
    app.add_option("--sequence", o.sequence, "tokens of a document");
    app.add_option("--batch", o.batch, "documents of a step");
    app.add_option("--kind", kind)->check(CLI::IsMember({"full", "moba"}));
    app.add_option("--block-size", o.moba.block_size);
    app.add_option("--top-k", o.moba.top_k);
    app.add_option("--steps", o.steps, "timed steps, after two others")->check(CLI::PositiveNumber);
    app.add_option("--threads", o.threads, "0: every core");
    app.add_flag("--json", o.json, "end with one JSON object");
    app.parse(argc, argv);
    o.sparse = kind == "moba";
    return o;
}

Batch random_batch(Options const& o, uint64_t step) {
    Philox const random(1, Purpose::mock_data, step);
    auto const tokens = static_cast<size_t>(o.batch * o.sequence);
    Batch batch;
    batch.weights_T.assign(tokens, 1.0f);
    batch.cu_seqlens.push_back(0);
    for (size_t t = 0; t < tokens; ++t) {
        batch.ids_T.push_back(static_cast<int32_t>(random.below(t, static_cast<uint64_t>(o.model.vocab_size))));
        batch.targets_T.push_back(static_cast<int32_t>(random.below(t + 1, static_cast<uint64_t>(o.model.vocab_size))));
        batch.positions_T.push_back(static_cast<int32_t>(t % static_cast<size_t>(o.sequence)));
    }
    for (int64_t i = 1; i <= o.batch; ++i) batch.cu_seqlens.push_back(static_cast<int32_t>(i * o.sequence));
    return batch;
}

/// Speed of one large product on all threads, in FLOP/s: the best of ten.
double plain_product_speed() {
    constexpr int64_t kSize = 1536;
    std::vector<float> const a(kSize * kSize, 1.0f), b(kSize * kSize, 0.5f);
    std::vector<float> c(kSize * kSize);
    double best = 0;
    for (int i = 0; i < 10; ++i) {
        auto const start = Clock::now();
        host::gemm<float>({.c = {c.data(), kSize},
                           .a = {a.data(), kSize},
                           .b = {b.data(), kSize},
                           .m = kSize,
                           .n = kSize,
                           .k = kSize,
                           .transpose_b = true});
        best = std::max(best, 2.0 * kSize * kSize * kSize / seconds_since(start));
    }
    return best;
}

/// A model with its buffers, trained on random tokens.
class Trainer {
  public:
    explicit Trainer(Options const& options)
        : options_(options),
          plain_ops_(make_host_ops(*device_, options.threads)),
          ops_(*plain_ops_),
          selections_(options.selections()),
          layout_(llama_params(options.model), 1, 0),
          mesh_(ParallelOptions{}, *world_),
          model_(options.model, layout_, mesh_, ops_) {
        for (TensorView* view : {&weights_, &grads_, &first_, &second_}) {
            *view = state_.allocate("parameters", DType::f32, {layout_.size()});
            ops_.fill_zero(*view);
        }
        initialise(ops_, layout_, {{layout_.whole(), weights_}}, 1);
    }

    /// Seconds of one step; the loss is the mean over tokens.
    double step() {
        Batch const batch = random_batch(options_, static_cast<uint64_t>(steps_));
        auto const start = Clock::now();
        ops_.fill_zero(grads_);
        double const tokens = static_cast<double>(batch.tokens());
        FlatWeights weights(layout_, weights_);
        FlatGradients grads(layout_, grads_);
        loss_ = model_.loss_and_gradient(weights, {.grads = grads, .scale = 1 / tokens}, batch, selections_, arena_) /
                tokens;
        double squares = 0;  // the operations work on host memory
        ops_.squared_norm(TensorView(&squares, {1}), grads_);
        double const norm = std::sqrt(squares);
        ops_.adamw({.w = weights_,
                    .m = first_,
                    .v = second_,
                    .g = grads_,
                    .lr = 1e-3,
                    .weight_decay = 0.1,
                    .grad_scale = std::min(1.0, 1 / norm),
                    .step = ++steps_});
        double const seconds = seconds_since(start);
        arena_.settle();
        return seconds;
    }

    TimedOps& ops() { return ops_; }
    double loss() const { return loss_; }
    int64_t parameters() const { return layout_.size(); }
    int64_t activation_bytes() const { return arena_.peak_bytes(); }

  private:
    Options options_;
    std::unique_ptr<Device> device_ = make_host_device();
    std::unique_ptr<HostComm> world_ = make_single_host_comm();
    std::unique_ptr<Ops> plain_ops_;
    TimedOps ops_;
    std::vector<Selection> selections_;
    ParamLayout layout_;
    Mesh mesh_;
    Arena arena_{*device_};
    Arena state_{*device_};  ///< weights, gradients and moments
    Llama model_;
    TensorView weights_, grads_, first_, second_;
    int64_t steps_ = 0;
    double loss_ = 0;
};

void run(Options const& options) {
    Trainer trainer(options);
    for (int i = 0; i < 2; ++i) trainer.step();
    trainer.ops().clear();
    MatrixClock const before = host_matrix_clock();
    std::vector<double> times;
    for (int64_t i = 0; i < options.steps; ++i) times.push_back(trainer.step());
    MatrixClock const after = host_matrix_clock();

    double total = 0;
    for (double t : times) total += t;
    std::ranges::nth_element(times, times.begin() + std::ssize(times) / 2);
    double const median = times[times.size() / 2];
    double const blas = after.seconds - before.seconds, flops = after.flops - before.flops;
    double const plain = plain_product_speed();
    double const tokens_per_s = static_cast<double>(options.batch * options.sequence) / median;
    Batch const batch = random_batch(options, 0);
    double const useful = forward_flops(options.model, options.selections(), batch.cu_seqlens).training();

    fmt::print("{:.1f} M parameters, {} tokens per step, {:.0f} MiB of activations, loss {:.4f}\n",
               1e-6 * static_cast<double>(trainer.parameters()), batch.tokens(),
               static_cast<double>(trainer.activation_bytes()) / 1048576.0, trainer.loss());
    fmt::print("{:<28}{:>8}{:>10}{:>9}{:>14}\n", "operation", "calls", "ms/step", "share", "in OpenBLAS");
    double inside = 0;
    for (auto const& [name, entry] : trainer.ops().table()) {
        fmt::print("{:<28}{:>8}{:>10.3f}{:>8.1f}%{:>13.1f}%\n", name, entry.calls / options.steps,
                   1e3 * entry.seconds / static_cast<double>(options.steps), 100 * entry.seconds / total,
                   100 * entry.blas_seconds / std::max(entry.seconds, 1e-12));
        inside += entry.seconds;
    }
    fmt::print("{:<36}{:>10.3f}{:>8.1f}%\n", "between operations",
               1e3 * (total - inside) / static_cast<double>(options.steps), 100 * (total - inside) / total);
    fmt::print(
        "median step {:.2f} ms: {:.0f} tokens/s, {:.1f} useful GFLOP/s; {:.1f}% of the time in OpenBLAS at {:.1f} "
        "GFLOP/s, a plain product reaches {:.1f}\n",
        1e3 * median, tokens_per_s, 1e-9 * useful / median, 100 * blas / total, 1e-9 * flops / blas, 1e-9 * plain);
    if (options.json)
        fmt::print(
            "{{\"tokens_per_s\": {:.2f}, \"step_s\": {:.6f}, \"blas_share\": {:.4f}, \"blas_gflops\": {:.2f}, "
            "\"plain_gflops\": {:.2f}, \"useful_gflops\": {:.2f}, \"parameters\": {}, \"tokens\": {}, "
            "\"steps\": {}}}\n",
            tokens_per_s, median, blas / total, 1e-9 * flops / blas, 1e-9 * plain, 1e-9 * useful / median,
            trainer.parameters(), batch.tokens(), options.steps);
}

}  // namespace

}  // namespace perigee

int main(int argc, char** argv) {
    CLI::App app("Times a training step on the CPU.");
    try {
        perigee::run(perigee::parse(app, argc, argv));
        return 0;
    } catch (CLI::ParseError const& e) {
        return app.exit(e);
    } catch (std::exception const& e) {
        return perigee::report_failure("bench_step", e);
    }
}
