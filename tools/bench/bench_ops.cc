// Memory-bound operations on a GPU at the sizes of a training step: median time, GB/s of what an operation must read
// and write, and the share of what a plain copy of 1 GiB reaches in the same run.
//   bench_ops [--tokens N] [--width N] [--samples N] [--only NAME]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace perigee {
namespace {

struct Settings {
    int64_t tokens = 16384;
    int64_t width = 2048;
    int64_t intermediate = 8192;
    int64_t heads = 32;
    int64_t kv_heads = 8;
    int64_t head_size = 64;
    int64_t vocab = 128256;
    int64_t loss_tokens = 2048;  ///< logits are made in chunks
    int64_t parameters = 200'000'000;
    int samples = 21;
    std::string only;
};

class Bench {
  public:
    Bench(Settings const& settings, Ops& ops) : s_(settings), ops_(ops) {}

    void run() {
        fmt::print("{}; {} tokens of {}\n{:<28}{:>10}{:>10}{:>8}\n", ops_.device().name(), s_.tokens, s_.width,
                   "operation", "us", "GB/s", "share");
        copy();
        flat();
        norm();
        qkv();
        swiglu();
        embedding();
        loss();
        quantize();
        adamw();
    }

  private:
    TensorView random(DType dtype, Shape const& shape, double stddev = 1) {
        TensorView const x = make(dtype, shape);
        ops_.fill_normal({.x = x, .random = Philox(1, Purpose::mock_data, buffers_.size()), .stddev = stddev});
        return x;
    }
    TensorView compute(Shape const& shape) { return random(DType::bf16, shape); }
    TensorView main(Shape const& shape) { return random(DType::f32, shape); }
    TensorView ids(int64_t count, int64_t end) {
        Philox const random(2, Purpose::mock_data);
        return uploaded(count, [&](uint64_t i) { return random.below(i, static_cast<uint64_t>(end)); });
    }
    /// As often as words in a text: the k-th with a probability proportional to 1 / k.
    TensorView words(int64_t count, int64_t end) {
        Philox const random(2, Purpose::mock_data);
        return uploaded(count, [&](uint64_t i) { return std::pow(static_cast<double>(end), random.uniform(i)) - 1; });
    }
    TensorView uploaded(int64_t count, auto const& value) {
        std::vector<int32_t> values;
        for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<int32_t>(value(static_cast<uint64_t>(i))));
        TensorView const view = make(DType::i32, {count});
        ops_.upload(view, values.data());
        return view;
    }
    int64_t distinct(ConstView ids) {
        std::vector<int32_t> values(static_cast<size_t>(ids.size()));
        ops_.download(values.data(), ids);
        return std::ssize(std::set<int32_t>(values.begin(), values.end()));
    }
    TensorView make(DType dtype, Shape const& shape) {
        Buffer const& buffer = buffers_.emplace_back(ops_.device(), static_cast<size_t>(shape.size() * size_of(dtype)));
        return {static_cast<std::byte*>(buffer.data()), dtype, shape};
    }

    /// Median over samples of at least a millisecond each: the GPU's queue never runs dry.
    double median_seconds(std::function<void()> const& work) {
        using Clock = std::chrono::steady_clock;
        auto const timed = [&](int calls) {
            ops_.device().synchronize();
            auto const start = Clock::now();
            for (int i = 0; i < calls; ++i) work();
            ops_.device().synchronize();
            return std::chrono::duration<double>(Clock::now() - start).count() / calls;
        };
        timed(3);
        int const calls = std::clamp(static_cast<int>(2e-3 / timed(3)), 3, 100);
        std::vector<double> times;
        for (int i = 0; i < s_.samples; ++i) times.push_back(timed(calls));
        std::ranges::nth_element(times, times.begin() + s_.samples / 2);
        return times[static_cast<size_t>(s_.samples / 2)];
    }

    void report(std::string const& name, int64_t bytes, std::function<void()> const& work) {
        if (!s_.only.empty() && name.find(s_.only) == std::string::npos && copied_ > 0) return;
        double const seconds = median_seconds(work), rate = static_cast<double>(bytes) / seconds;
        if (copied_ == 0) copied_ = rate;
        fmt::print("{:<28}{:>10.1f}{:>10.0f}{:>7.0f}%\n", name, seconds * 1e6, rate * 1e-9, 100 * rate / copied_);
    }

    void copy() {
        Shape const shape{int64_t{1} << 29};
        TensorView const to = compute(shape), from = compute(shape);
        report("copy", 2 * to.bytes(), [=, this] { ops_.copy(to, from); });
        buffers_.clear();
    }
    void flat();
    void norm();
    void qkv();
    void swiglu();
    void embedding();
    void loss();
    void quantize();
    QuantTensor quantised(Tiles tiles, int64_t rows, int64_t columns) {
        Shape const shape{rows, columns};
        return {make(DType::u8, shape), make(DType::f32, scales_shape(tiles, shape)), tiles};
    }
    void adamw();

    Settings s_;
    Ops& ops_;
    std::deque<Buffer> buffers_;
    double copied_ = 0;
};

void Bench::flat() {
    Shape const shape{s_.parameters};
    TensorView const a = main(shape), b = main(shape), narrow = compute(shape);
    report("add (fp32)", 3 * a.bytes(), [=, this] { ops_.add(a, b); });
    report("scale (fp32)", 2 * a.bytes(), [=, this] { ops_.scale(a, 1.0001); });
    report("cast to bf16", a.bytes() + narrow.bytes(), [=, this] { ops_.copy(narrow, a); });
    TensorView const sum = make(DType::f64, {1});
    ops_.fill_zero(sum);
    report("squared_norm", a.bytes(), [=, this] { ops_.squared_norm(sum, a); });
    int64_t const rows = s_.parameters / 4096;
    report("copy_rows of 4 KB", 2 * rows * 4096, [=, this] {
        ops_.copy_rows({.to = narrow,
                        .to_stride = 2048,
                        .from = narrow,
                        .from_begin = rows * 2048,
                        .from_stride = 2048,
                        .rows = rows,
                        .width = 2048});
    });
    report("fill_normal", a.bytes(),
           [=, this] { ops_.fill_normal({.x = a, .random = Philox(3, Purpose::mock_data), .stddev = 0.02}); });
    buffers_.clear();
}

void Bench::norm() {
    Shape const shape{s_.tokens, s_.width};
    TensorView const x = compute(shape), residual = compute(shape), sum = compute(shape), y = compute(shape);
    TensorView const w = compute({s_.width}), rstd = main({s_.tokens}), dw = main({s_.width});
    report("rmsnorm_forward", 2 * x.bytes(),
           [=, this] { ops_.rmsnorm_forward({.y_TD = y, .rstd_T = rstd, .x_TD = x, .w_D = w, .eps = 1e-5}); });
    report("rmsnorm_forward + residual", 4 * x.bytes(), [=, this] {
        ops_.rmsnorm_forward(
            {.y_TD = y, .rstd_T = rstd, .x_TD = x, .w_D = w, .eps = 1e-5, .residual_TD = residual, .sum_TD = sum});
    });
    TensorView const dx = compute(shape);
    report("rmsnorm_backward", 4 * x.bytes(), [=, this] {
        ops_.rmsnorm_backward({.dx_TD = dx,
                               .dw_accumulated_D = dw,
                               .dy_TD = y,
                               .x_TD = x,
                               .w_D = w,
                               .rstd_T = rstd,
                               .dresidual_TD = residual});
    });
    buffers_.clear();
}

void Bench::qkv() {
    int64_t const width = (s_.heads + 2 * s_.kv_heads) * s_.head_size;
    TensorView const qkv = compute({s_.tokens, width}), q = compute({s_.tokens, s_.heads, s_.head_size});
    TensorView const k = compute({s_.tokens, s_.kv_heads, s_.head_size}), v = compute(k.shape);
    TensorView const cos = main({s_.tokens, s_.head_size / 2}), sin = main(cos.shape), norm = compute({s_.head_size});
    TensorView const bias = compute({width}), dbias = main({width}), dnorm = main({s_.head_size});
    std::vector<double> const frequencies(static_cast<size_t>(s_.head_size / 2), 0.01);
    TensorView const positions = ids(s_.tokens, s_.tokens);
    report("rope_table", 2 * cos.bytes(), [=, this] { ops_.rope_table({cos, sin, positions, frequencies, 1}); });
    struct Parts {
        char const* name;
        bool bias, norms;
    };
    for (Parts const parts : {Parts{"", false, false}, {" + bias", true, false}, {" + norms", false, true}}) {
        QkvForward forward{
            .q_THK = q, .k_TGK = k, .v_TGK = v, .qkv_TX = qkv, .cos_TR = cos, .sin_TR = sin, .eps = 1e-6};
        QkvBackward backward{.dqkv_TX = compute(qkv.shape),
                             .dq_THK = q,
                             .dk_TGK = k,
                             .dv_TGK = v,
                             .qkv_TX = qkv,
                             .cos_TR = cos,
                             .sin_TR = sin,
                             .eps = 1e-6};
        if (parts.bias) {
            forward.bias_X = bias;
            backward.dbias_accumulated_X = dbias;
        }
        if (parts.norms) {
            forward.q_norm_K = forward.k_norm_K = backward.q_norm_K = backward.k_norm_K = norm;
            backward.dq_norm_accumulated_K = backward.dk_norm_accumulated_K = dnorm;
        }
        std::string const suffix = parts.name;
        report("qkv_forward" + suffix, (parts.bias ? 3 : 2) * qkv.bytes() + 2 * cos.bytes(),
               [=, this] { ops_.qkv_forward(forward); });
        int64_t const normed = parts.norms ? q.bytes() + k.bytes() : 0;  // the norms' backward reads what they had
        report("qkv_backward" + suffix, 2 * qkv.bytes() + normed + 2 * cos.bytes(),
               [=, this] { ops_.qkv_backward(backward); });
    }
    buffers_.clear();
}

void Bench::swiglu() {
    TensorView const gate_up = compute({s_.tokens, 2 * s_.intermediate}), y = compute({s_.tokens, s_.intermediate});
    TensorView const dgate_up = compute(gate_up.shape);
    report("swiglu_forward", 3 * y.bytes(), [=, this] { ops_.swiglu_forward(y, gate_up); });
    report("swiglu_backward", 5 * y.bytes(), [=, this] { ops_.swiglu_backward({dgate_up, y, gate_up}); });
    buffers_.clear();
}

void Bench::embedding() {
    TensorView const table = compute({s_.vocab, s_.width}), dtable = main(table.shape),
                     x = compute({s_.tokens, s_.width});
    TensorView const tokens = ids(s_.tokens, s_.vocab);
    report("embedding_forward", 2 * x.bytes(), [=, this] { ops_.embedding_forward({x, tokens, table, 0}); });
    auto const backward = [&](std::string const& name, TensorView of) {  // a row of the table is read and written once
        report(name, of.bytes() + x.bytes() + 2 * distinct(of) * s_.width * size_of(DType::f32), [=, this] {
            ops_.embedding_backward({dtable, of, x, 0});
        });
    };
    backward("embedding_backward", tokens);
    backward("embedding_backward, text", words(s_.tokens, s_.vocab));
    buffers_.clear();
}

void Bench::loss() {
    TensorView const logits = compute({s_.loss_tokens, s_.vocab}), targets = ids(s_.loss_tokens, s_.vocab);
    Shape const column{s_.loss_tokens};
    TensorView const max = main(column), sum = main(column), target = main(column), nll = main(column);
    TensorView const weights = main(column), dlogits = compute(logits.shape);
    report("softmax_stats", logits.bytes(), [=, this] {
        ops_.softmax_stats({.max_T = max, .sum_T = sum, .target_T = target, .logits_TV = logits, .targets_T = targets});
    });
    report("cross_entropy", 2 * logits.bytes(), [=, this] {
        ops_.cross_entropy({.nll_T = nll,
                            .dlogits_TV = dlogits,
                            .logits_TV = logits,
                            .targets_T = targets,
                            .weights_T = weights,
                            .max_T = max,
                            .sum_T = sum,
                            .target_T = target});
    });
    buffers_.clear();
}

void Bench::quantize() {
    int64_t const rows = s_.tokens, columns = s_.intermediate;
    TensorView const x = compute({rows, columns}), dy = compute({rows, columns}),
                     gate_up = compute({rows, 2 * columns});
    for (Tiles const tiles : {Tiles::rows, Tiles::squares}) {
        std::string const name = tiles == Tiles::rows ? "quantize rows" : "quantize squares";
        QuantTensor const to = quantised(tiles, rows, columns), turned = quantised(tiles, columns, rows);
        int64_t const bytes = to.values.bytes() + to.scales.bytes();
        report(name, x.bytes() + bytes, [=, this] { ops_.quantize({.to = to, .transposed = {}, .x = x}); });
        report(name + ", transpose", x.bytes() + bytes,
               [=, this] { ops_.quantize({.to = {}, .transposed = turned, .x = x}); });
        report(name + ", both", x.bytes() + 2 * bytes,
               [=, this] { ops_.quantize({.to = to, .transposed = turned, .x = x}); });
    }
    QuantTensor const d = quantised(Tiles::rows, rows, 2 * columns),
                      d_turned = quantised(Tiles::rows, 2 * columns, rows);
    report("swiglu_backward, quantised", 3 * x.bytes() + 2 * (d.values.bytes() + d.scales.bytes()), [=, this] {
        ops_.swiglu_backward(
            {.dgate_up_T2F = {}, .dy_TF = dy, .gate_up_T2F = gate_up, .quantised_T2F = d, .transposed_2FT = d_turned});
    });
    buffers_.clear();
}

void Bench::adamw() {
    Shape const shape{s_.parameters};
    TensorView const w = main(shape), m = main(shape), v = main(shape), g = main(shape), rounded = compute(shape);
    ops_.fill_zero(v);
    report("adamw", 7 * w.bytes() + rounded.bytes(),
           [=, this] { ops_.adamw({.w = w, .m = m, .v = v, .g = g, .lr = 1e-3, .rounded = rounded}); });
    buffers_.clear();
}

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
    perigee::Settings settings;
    CLI::App app("memory-bound operations on a GPU");
    app.add_option("--tokens", settings.tokens);
    app.add_option("--width", settings.width);
    app.add_option("--intermediate", settings.intermediate);
    app.add_option("--heads", settings.heads);
    app.add_option("--kv-heads", settings.kv_heads);
    app.add_option("--head-size", settings.head_size);
    app.add_option("--vocab", settings.vocab);
    app.add_option("--parameters", settings.parameters);
    app.add_option("--samples", settings.samples);
    app.add_option("--only", settings.only, "operations whose names contain this");
    CLI11_PARSE(app, argc, argv);
    try {
        auto const device = perigee::make_cuda_device(0);
        auto const ops = perigee::make_cuda_ops(*device);
        perigee::Bench(settings, *ops).run();
    } catch (std::exception const& error) {
        return perigee::report_failure("bench_ops", error);
    }
    return 0;
}
