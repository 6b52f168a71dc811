// Full attention against MoBA on the CPU: milliseconds and GFLOP/s of the executed products, forward and backward,
// beside the rate of one large plain product.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <functional>
#include <vector>

#include "base/philox.h"
#include "ops/ops.h"

namespace perigee {
namespace {

struct Settings {
    std::vector<int64_t> lengths = {2048, 4096, 8192, 16384};
    int64_t heads = 4;
    int64_t kv_heads = 2;
    int64_t head_dim = 64;
    MobaOptions moba{.block_size = 128, .top_k = 4};
    int repeats = 5;
    int threads = 0;
};

std::vector<float> random_values(int64_t count, uint64_t stream) {
    Philox const random(1, Purpose::mock_data, stream);
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(random.normal(i));
    return values;
}

struct Timing {
    double milliseconds = 0;
    double gflops = 0;
};

/// The fastest of `repeats` runs after one to warm up.
Timing measure(int repeats, std::function<void()> const& work) {
    work();
    Timing best{.milliseconds = 1e300};
    for (int i = 0; i < repeats; ++i) {
        double const flops = host_matrix_clock().flops;
        auto const start = std::chrono::steady_clock::now();
        work();
        double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (seconds * 1e3 < best.milliseconds)
            best = {seconds * 1e3, (host_matrix_clock().flops - flops) / seconds * 1e-9};
    }
    return best;
}

Timing plain_product(Ops& ops, Settings const& settings) {
    int64_t const n = 2048;
    std::vector<float> const a = random_values(n * n, 10), b = random_values(n * n, 11);
    std::vector<float> c(a.size());
    return measure(settings.repeats, [&] {
        ops.matmul({.c = {c.data(), {n, n}}, .a = {a.data(), {n, n}}, .b = {b.data(), {n, n}}});
    });
}

/// Attention over one document of T tokens: all its tensors, and the calls.
class Document {
  public:
    Document(Settings const& s, int64_t T)
        : q_shape_{T, s.heads, s.head_dim},
          k_shape_{T, s.kv_heads, s.head_dim},
          chosen_shape_{T, s.heads, s.moba.top_k - 1},
          budget_{s.moba.block_size, s.moba.top_k},
          borders_{0, static_cast<int32_t>(T)},
          scale_(1 / std::sqrt(static_cast<double>(s.head_dim))),
          q_(random_values(q_shape_.size(), 0)),
          k_(random_values(k_shape_.size(), 1)),
          v_(random_values(k_shape_.size(), 2)),
          d_o_(random_values(q_shape_.size(), 3)),
          o_(q_.size()),
          lse_(static_cast<size_t>(T * s.heads)),
          dq_(q_.size()),
          dk_(k_.size()),
          dv_(k_.size()),
          chosen_(static_cast<size_t>(chosen_shape_.size())) {}

    void select(Ops& ops, MobaOptions const& moba) {
        ops.select_blocks({.chosen_THS = {chosen_.data(), chosen_shape_},
                           .q_THK = {q_.data(), q_shape_},
                           .k_TGK = {k_.data(), k_shape_},
                           .cu_seqlens = borders_,
                           .selection = moba});
    }
    void forward(Ops& ops, bool sparse) {
        ops.attention_forward({.o_THK = {o_.data(), q_shape_},
                               .lse_TH = {lse_.data(), {q_shape_[0], q_shape_[1]}},
                               .q_THK = {q_.data(), q_shape_},
                               .k_TGK = {k_.data(), k_shape_},
                               .v_TGK = {v_.data(), k_shape_},
                               .cu_seqlens = borders_,
                               .scale = scale_,
                               .attended = attended(sparse)});
    }
    void backward(Ops& ops, bool sparse) {
        ops.attention_backward({.dq_THK = {dq_.data(), q_shape_},
                                .dk_TGK = {dk_.data(), k_shape_},
                                .dv_TGK = {dv_.data(), k_shape_},
                                .do_THK = {d_o_.data(), q_shape_},
                                .q_THK = {q_.data(), q_shape_},
                                .k_TGK = {k_.data(), k_shape_},
                                .v_TGK = {v_.data(), k_shape_},
                                .o_THK = {o_.data(), q_shape_},
                                .lse_TH = {lse_.data(), {q_shape_[0], q_shape_[1]}},
                                .cu_seqlens = borders_,
                                .scale = scale_,
                                .attended = attended(sparse)});
    }

  private:
    Attended attended(bool sparse) const {
        if (!sparse) return FullAttention{};
        return BlockSparse{.budget = budget_, .chosen_THS = {chosen_.data(), chosen_shape_}};
    }

    Shape q_shape_, k_shape_, chosen_shape_;
    BlockBudget budget_;
    std::vector<int32_t> borders_;
    double scale_;
    std::vector<float> q_, k_, v_, d_o_, o_, lse_, dq_, dk_, dv_;
    std::vector<int32_t> chosen_;
};

void report(Settings const& settings) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, settings.threads);
    fmt::print("plain product 2048^3: {:.0f} GFLOP/s\n", plain_product(*ops, settings).gflops);
    fmt::print("{:>8} {:>10} {:>18} {:>18} {:>18} {:>8}\n", "tokens", "pass", "full ms GFLOP/s", "MoBA ms GFLOP/s",
               "choice ms", "speedup");
    for (int64_t T : settings.lengths) {
        Document document(settings, T);
        Timing const choice = measure(settings.repeats, [&] { document.select(*ops, settings.moba); });
        for (bool forward : {true, false}) {
            auto const run = [&](bool blocks) {
                document.forward(*ops, blocks);  // so that the backward finds its own o and lse
                return measure(settings.repeats,
                               [&] { forward ? document.forward(*ops, blocks) : document.backward(*ops, blocks); });
            };
            Timing const full = run(false), sparse = run(true);
            double const extra = forward ? choice.milliseconds : 0;
            fmt::print("{:>8} {:>10} {:>10.1f} {:>7.0f} {:>10.1f} {:>7.0f} {:>18.1f} {:>7.1f}x\n", T,
                       forward ? "forward" : "backward", full.milliseconds, full.gflops, sparse.milliseconds,
                       sparse.gflops, extra, full.milliseconds / (sparse.milliseconds + extra));
        }
    }
}

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
    perigee::Settings settings;
    CLI::App app{"Times full attention and MoBA on the CPU. The speedup counts the choice of blocks."};
    app.add_option("--tokens", settings.lengths, "lengths of the document")->capture_default_str();
    app.add_option("--heads", settings.heads)->capture_default_str();
    app.add_option("--kv-heads", settings.kv_heads)->capture_default_str();
    app.add_option("--head-dim", settings.head_dim)->capture_default_str();
    app.add_option("--block-size", settings.moba.block_size)->capture_default_str();
    app.add_option("--top-k", settings.moba.top_k)->capture_default_str();
    app.add_option("--repeats", settings.repeats)->capture_default_str();
    app.add_option("--threads", settings.threads, "0: all cores")->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    perigee::report(settings);
}
