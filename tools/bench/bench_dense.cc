// Dense causal attention on the GPU: own kernels against cuDNN, in turns in one process. Milliseconds (median of back
// to back runs, median of rounds), TFLOP/s of the products that causality leaves, and how far their results differ.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/philox.h"
#include "kernels/dense_attention/dense_attention.h"
#include "ops/cuda/dense_attention.h"
#include "ops/ops.h"
#include "tools/bench/gpu_timer.h"

namespace perigee {
namespace {

struct Settings {
    double seconds = 0.3, rest = 0.1;
    int rounds = 2;
    std::string only;
    bool list = false;
};

struct Problem {
    std::string name;
    int64_t heads, kv_heads, head_dim;
    std::vector<int64_t> lengths;
};

/// `count` lengths, log-uniform between the two, scaled to `total` tokens.
std::vector<int64_t> ragged(int64_t count, double shortest, double longest, int64_t total) {
    Philox const random(1, Purpose::mock_data);
    std::vector<double> raw;
    for (int64_t i = 0; i < count; ++i)
        raw.push_back(shortest * std::pow(longest / shortest, random.uniform(static_cast<uint64_t>(i))));
    double const scale = static_cast<double>(total) / std::accumulate(raw.begin(), raw.end(), 0.0);
    std::vector<int64_t> lengths;
    for (double const x : raw) lengths.push_back(std::max<int64_t>(1, std::llround(x * scale)));
    lengths.back() += total - std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    return lengths;
}

/// One more in the middle.
std::vector<int64_t> with_another(std::vector<int64_t> lengths, int64_t length) {
    lengths.insert(lengths.begin() + std::ssize(lengths) / 2, length);
    return lengths;
}

std::vector<Problem> problems() {
    int64_t constexpr k = 1024;
    std::vector<Problem> all = {
        {"32K, d 128", 32, 8, 128, {32 * k}},
        {"8K, d 128", 24, 8, 128, {8 * k}},
        {"4 x 8K, d 64", 32, 8, 64, std::vector<int64_t>(4, 8 * k)},
        {"64 ragged, 128K, d 128", 32, 8, 128, ragged(64, 256, 8192, 128 * k)},
        {"32 chats, 32K, d 64", 32, 8, 64, ragged(32, 128, 4096, 32 * k)},
        {"32K, d 64", 32, 8, 64, {32 * k}},
        {"16 x 8K, d 128", 32, 8, 128, std::vector<int64_t>(16, 8 * k)},
        {"32 chats, 32K, d 128", 32, 8, 128, ragged(32, 128, 4096, 32 * k)},
        {"64 ragged, 128K, d 64", 32, 8, 64, ragged(64, 256, 8192, 128 * k)},
        {"128K, d 128", 8, 2, 128, {128 * k}},
        {"32 x 1K, d 64", 32, 8, 64, std::vector<int64_t>(32, k)},
        {"32 x 1K, d 128", 32, 8, 128, std::vector<int64_t>(32, k)},
        {"2K, d 64", 32, 8, 64, {2 * k}},
        {"2K, d 128", 32, 8, 128, {2 * k}},
        {"63 ragged and 32K, 128K, d 128", 32, 8, 128, with_another(ragged(63, 256, 4096, 96 * k), 32 * k)},
        {"32K, d 96", 32, 8, 96, {32 * k}},
        {"4 x 8K, d 96", 32, 8, 96, std::vector<int64_t>(4, 8 * k)},
        {"4 x 8K, 9/3, d 64", 9, 3, 64, std::vector<int64_t>(4, 8 * k)},
        {"32 x 1K, 24/8, d 128", 24, 8, 128, std::vector<int64_t>(32, k)},
        {"32 chats, 32K, 28/4, d 128", 28, 4, 128, ragged(32, 128, 4096, 32 * k)},
        {"8K, 32/32, d 128", 32, 32, 128, {8 * k}},
    };
    return all;
}

class Bench {
  public:
    Bench(CudaDevice& device, Ops& ops, Settings const& s, Problem const& p)
        : device_(device), ops_(ops), s_(s), p_(p), staging_(device), cudnn_(device, staging_, [this](size_t bytes) {
              if (bytes > library_scratch_.bytes()) library_scratch_ = Buffer(device_, bytes);
              return library_scratch_.data();
          }) {
        for (int64_t const length : p.lengths) borders_.push_back(borders_.back() + static_cast<int32_t>(length));
        int64_t const T = borders_.back();
        Shape const rows{T, p.heads, p.head_dim}, keys{T, p.kv_heads, p.head_dim};
        q_ = random(rows, 1), k_ = random(keys, 2), v_ = random(keys, 3), d_o_ = random(rows, 4);
        for (int i = 0; i < 2; ++i)
            dq_[i] = make(DType::bf16, rows), dk_[i] = make(DType::bf16, keys), dv_[i] = make(DType::bf16, keys);
        for (int i = 0; i < 2; ++i) o_[i] = make(DType::bf16, rows), lse_[i] = make(DType::f32, {T, p.heads});
        TensorView const borders = make(DType::i32, {std::ssize(borders_)});
        ops_.upload(borders, borders_.data());
        own_ = {.shape = {.tokens = T,
                          .documents = std::ssize(p.lengths),
                          .heads = p.heads,
                          .kv_heads = p.kv_heads,
                          .head_dim = p.head_dim},
                .queries = T,
                .scale = 1 / std::sqrt(static_cast<double>(p.head_dim)),
                .cu_seqlens = borders.as<int32_t>(),
                .q = q_.as<bf16>(),
                .k = k_.as<bf16>(),
                .v = v_.as<bf16>(),
                .stream = device_.stream()};
        int64_t const bytes = static_cast<int64_t>(dense_backward_scratch(own_.shape));
        own_.scratch = make(DType::i32, {bytes / 4}).data;
    }

    void run() {
        double teraflop = 0;
        for (int64_t const n : p_.lengths)
            teraflop += 2e-12 * static_cast<double>(n) * static_cast<double>(n + 1) *
                        static_cast<double>(p_.head_dim * p_.heads);
        fmt::print("{}\n", p_.name);
        measure({{"cuDNN", [&] { library_forward(); }},
                 {"own", [&] { dense_attention_forward(own_, o_[0].as<bf16>(), lse_[0].as<float>()); }}},
                teraflop);
        measure({{"own, deterministic", [&] { own_backward(true); }},
                 {"cuDNN", [&] { library_backward(); }},
                 {"own", [&] { own_backward(false); }}},
                2.5 * teraflop);
        fmt::print("  differences: o {:.1e}, lse {:.1e}, dq {:.1e}, dk {:.1e}, dv {:.1e}\n", difference(o_),
                   difference(lse_), difference(dq_), difference(dk_), difference(dv_));
        std::fflush(stdout);
    }

  private:
    struct Way {
        std::string name;
        std::function<void()> run;
    };
    void measure(std::vector<Way> const& ways, double teraflop) {
        std::vector<std::vector<double>> times(ways.size());
        GpuTimer timer(device_.stream(), s_.seconds, s_.rest);
        for (int round = 0; round < s_.rounds; ++round)
            for (size_t i = 0; i < ways.size(); ++i) times[i].push_back(timer(ways[i].run));
        for (size_t i = 0; i < ways.size(); ++i) {
            auto const middle = times[i].begin() + s_.rounds / 2;
            std::nth_element(times[i].begin(), middle, times[i].end());
            fmt::print("  {:<28} {:>9.3f} ms {:>7.1f} TFLOP/s\n", ways[i].name, *middle, 1e3 * teraflop / *middle);
        }
        std::fflush(stdout);
    }
    TensorView make(DType dtype, Shape const& shape) {
        buffers_.emplace_back(device_, static_cast<size_t>(shape.size() * size_of(dtype)) + 256);
        return {static_cast<std::byte*>(buffers_.back().data()), dtype, shape};
    }
    TensorView random(Shape const& shape, uint64_t stream) {
        TensorView const x = make(DType::bf16, shape);
        ops_.fill_normal({.x = x, .random = Philox(1, Purpose::mock_data, stream)});
        return x;
    }
    void library_forward() {
        cudnn_.forward({.o_THK = o_[1],
                        .lse_TH = lse_[1],
                        .q_THK = q_,
                        .k_TGK = k_,
                        .v_TGK = v_,
                        .cu_seqlens = borders_,
                        .scale = own_.scale});
    }
    void own_backward(bool deterministic) {
        own_.shape.deterministic = deterministic;
        dense_attention_backward(own_, {.d_o = d_o_.as<bf16>(),
                                        .o = o_[1].as<bf16>(),
                                        .lse = lse_[1].as<float>(),
                                        .dq = dq_[0].as<bf16>(),
                                        .dk = dk_[0].as<bf16>(),
                                        .dv = dv_[0].as<bf16>()});
    }
    void library_backward() {
        cudnn_.backward({.dq_THK = dq_[1],
                         .dk_TGK = dk_[1],
                         .dv_TGK = dv_[1],
                         .do_THK = d_o_,
                         .q_THK = q_,
                         .k_TGK = k_,
                         .v_TGK = v_,
                         .o_THK = o_[1],
                         .lse_TH = lse_[1],
                         .cu_seqlens = borders_,
                         .scale = own_.scale});
    }
    /// Relative L2 of the first to the second, over their last numbers.
    double difference(TensorView const (&x)[2]) {
        device_.synchronize();
        int64_t const count = std::min<int64_t>(x[0].shape.size(), 4 << 20);
        std::vector<double> values[2];
        for (int i = 0; i < 2; ++i) {
            std::vector<std::byte> raw(static_cast<size_t>(count * size_of(x[i].dtype)));
            device_.copy(raw.data(), x[i].data + x[i].bytes() - std::ssize(raw), raw.size());
            for (int64_t j = 0; j < count; ++j)
                values[i].push_back(x[i].dtype == DType::f32 ? reinterpret_cast<float const*>(raw.data())[j]
                                                             : to_float(reinterpret_cast<bf16 const*>(raw.data())[j]));
        }
        double error = 0, all = 0;
        for (size_t j = 0; j < values[0].size(); ++j) {
            error += (values[0][j] - values[1][j]) * (values[0][j] - values[1][j]);
            all += values[1][j] * values[1][j];
        }
        return std::sqrt(error / all);
    }

    CudaDevice& device_;
    Ops& ops_;
    Settings const& s_;
    Problem const& p_;
    Buffer library_scratch_;
    Staging staging_;
    DenseAttention cudnn_;
    std::vector<int32_t> borders_ = {0};
    std::vector<Buffer> buffers_;
    TensorView q_, k_, v_, d_o_, o_[2], lse_[2], dq_[2], dk_[2], dv_[2];
    DenseAttentionProblem own_;
};

int run(int argc, char** argv) {
    Settings s;
    CLI::App app("Dense causal attention: own kernels against cuDNN");
    app.add_option("--seconds", s.seconds, "Of every measurement")->capture_default_str();
    app.add_option("--rest", s.rest, "Seconds of rest before every measurement")->capture_default_str();
    app.add_option("--rounds", s.rounds, "Measurements of each, in turns")->capture_default_str();
    app.add_option("--only", s.only, "The problem of this name, or those whose name contains it");
    app.add_flag("--list", s.list, "Print each problem as a JSON object, and measure none");
    CLI11_PARSE(app, argc, argv);
    std::vector<Problem> const all = problems();
    bool const one = std::ranges::count(all, s.only, &Problem::name) > 0;
    auto const asked = [&](Problem const& p) {
        return one ? p.name == s.only : p.name.find(s.only) != std::string::npos;
    };
    if (s.list) {
        for (Problem const& p : all)
            if (asked(p))
                fmt::print("{}\n", nlohmann::json({{"name", p.name},
                                                   {"heads", p.heads},
                                                   {"kv_heads", p.kv_heads},
                                                   {"head_dim", p.head_dim},
                                                   {"lengths", p.lengths}})
                                       .dump());
        return 0;
    }
    auto const device = make_cuda_device(0);
    auto const ops = make_cuda_ops(*device);
    for (Problem const& problem : all)
        if (asked(problem)) Bench(dynamic_cast<CudaDevice&>(*device), *ops, s, problem).run();
    return 0;
}

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
    try {
        return perigee::run(argc, argv);
    } catch (std::exception const& error) {
        return perigee::report_failure("bench_dense", error);
    }
}
