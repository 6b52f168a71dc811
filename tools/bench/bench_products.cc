// The products of a block on a GPU, forward and backward, in bf16 and with quantised operands. Sustained TFLOP/s of
// each product, alone and with the casts of its operands.
//   bench_products [--tokens N] [--hidden N] [--heads N] [--kv-heads N] [--head-size N] [--intermediate N] [--seconds
//   S]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <deque>
#include <functional>

#include "model/precision.h"
#include "ops/ops.h"

namespace perigee {
namespace {

struct Settings {
    int64_t tokens = 32768;
    ModelOptions model = {.hidden_size = 2048,
                          .intermediate_size = 8192,
                          .num_attention_heads = 32,
                          .num_key_value_heads = 8,
                          .head_dim = 64};
    double seconds = 0.3;
};

class Bench {
  public:
    Bench(Settings const& settings, Ops& ops) : s_(settings), ops_(ops) {}

    void run() {
        fmt::print("{}; {} tokens, TFLOP/s\n{:<28}{:>8}{:>8}{:>8}{:>8}{:>12}\n", ops_.device().name(), s_.tokens,
                   "product", "bf16", "fp8", "ratio", "casts", "with casts");
        for (NamedLinear const& of : block_linears(s_.model, s_.tokens, s_.tokens, 1)) measure(of);
        fmt::print("{:<28}{:>6.1f}ms{:>6.1f}ms{:>8.2f}{:>6.1f}ms{:>12.2f}\n", "all", 1e3 * plain_, 1e3 * quantised_,
                   plain_ / quantised_, 1e3 * casts_, plain_ / (quantised_ + casts_));
    }

  private:
    TensorView make(DType dtype, Shape const& shape) {
        Buffer const& buffer = buffers_.emplace_back(ops_.device(), static_cast<size_t>(shape.size() * size_of(dtype)));
        return {static_cast<std::byte*>(buffer.data()), dtype, shape};
    }
    TensorView random(int64_t rows, int64_t columns, double stddev) {
        TensorView const x = make(DType::bf16, {rows, columns});
        ops_.fill_normal({.x = x, .random = Philox(1, Purpose::mock_data, buffers_.size()), .stddev = stddev});
        return x;
    }
    QuantTensor quantised(Tiles tiles, int64_t rows, int64_t columns) {
        Shape const shape{rows, columns};
        return {make(DType::u8, shape), make(DType::f32, scales_shape(tiles, shape)), tiles};
    }

    /// Seconds per call, averaged over the requested duration.
    double seconds_of(std::function<void()> const& work) {
        using Clock = std::chrono::steady_clock;
        work();
        ops_.device().synchronize();
        auto const start = Clock::now();
        int64_t calls = 0;
        double passed = 0;
        do {
            for (int i = 0; i < 8; ++i) work();
            ops_.device().synchronize();
            calls += 8;
            passed = std::chrono::duration<double>(Clock::now() - start).count();
        } while (passed < s_.seconds);
        return passed / static_cast<double>(calls);
    }

    void line(std::string const& name, double flops, double plain, double fp8, double casts) {
        fmt::print("{:<28}{:>8.0f}{:>8.0f}{:>8.2f}{:>6.2f}ms{:>12.2f}\n", name, flops / plain * 1e-12,
                   flops / fp8 * 1e-12, plain / fp8, 1e3 * casts, plain / (fp8 + casts));
        plain_ += plain, quantised_ += fp8, casts_ += casts;
    }

    void measure(NamedLinear const& of) {
        auto const [T, O, I] = of.shape;
        double const flops = 2.0 * static_cast<double>(T * O) * static_cast<double>(I);
        TensorView const x = random(T, I, 1), dy = random(T, O, 1e-4), w = random(O, I, 0.02);
        TensorView const y = make(DType::bf16, {T, O}), dx = make(DType::bf16, {T, I}), dw = make(DType::f32, {O, I});
        ops_.fill_zero(dw);
        QuantTensor const x_TI = quantised(Tiles::rows, T, I), x_IT = quantised(Tiles::squares, I, T);
        QuantTensor const dy_TO = quantised(Tiles::rows, T, O), dy_OT = quantised(Tiles::rows, O, T);
        QuantTensor const w_OI = quantised(Tiles::squares, O, I), w_IO = quantised(Tiles::squares, I, O);
        auto const cast = [&](QuantTensor const& to, QuantTensor const& transposed, TensorView from) {
            return seconds_of([&] { ops_.quantize({.to = to, .transposed = transposed, .x = from}); });
        };
        double const of_x = cast(x_TI, {}, x), of_w = cast(w_OI, {}, w), of_dy = cast(dy_TO, dy_OT, dy);
        double const of_x_turned = cast({}, x_IT, x), of_w_turned = cast({}, w_IO, w);
        std::string const name = fmt::format("{} [{}, {}]", of.name, O, I);
        line(name + " forward", flops, seconds_of([&] { ops_.matmul({.c = y, .a = x, .b = w, .transpose_b = true}); }),
             seconds_of([&] { ops_.matmul8({.c = y, .a = x_TI, .b = w_OI}); }), of_x + of_w);
        line(name + " dgrad", flops, seconds_of([&] { ops_.matmul({.c = dx, .a = dy, .b = w}); }),
             seconds_of([&] { ops_.matmul8({.c = dx, .a = dy_TO, .b = w_IO}); }), of_dy + of_w_turned);
        line(name + " wgrad", flops,
             seconds_of([&] { ops_.matmul({.c = dw, .a = dy, .b = x, .transpose_a = true, .accumulate = true}); }),
             seconds_of([&] { ops_.matmul8({.c = dw, .a = dy_OT, .b = x_IT, .accumulate = true}); }), of_x_turned);
        buffers_.clear();
    }

    Settings s_;
    Ops& ops_;
    std::deque<Buffer> buffers_;
    double plain_ = 0, quantised_ = 0, casts_ = 0;
};

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
    perigee::Settings settings;
    CLI::App app("products of a block with bf16 and with quantised operands");
    app.add_option("--tokens", settings.tokens);
    app.add_option("--hidden", settings.model.hidden_size);
    app.add_option("--heads", settings.model.num_attention_heads);
    app.add_option("--kv-heads", settings.model.num_key_value_heads);
    app.add_option("--head-size", settings.model.head_dim);
    app.add_option("--intermediate", settings.model.intermediate_size);
    app.add_option("--seconds", settings.seconds, "seconds per product");
    CLI11_PARSE(app, argc, argv);
    try {
        auto const device = perigee::make_cuda_device(0);
        auto const ops = perigee::make_cuda_ops(*device);
        perigee::Bench(settings, *ops).run();
    } catch (std::exception const& error) {
        return perigee::report_failure("bench_products", error);
    }
    return 0;
}
