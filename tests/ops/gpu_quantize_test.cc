// Quantised matrices on the GPU: bytes and scales equal the host's, and products of the dequantised values.
#include <fmt/format.h>

#include "ops/gpu_case.h"

namespace perigee::testing {

namespace {

struct Result {
    std::vector<uint8_t> bytes;
    std::vector<float> scales;
    bool operator==(Result const&) const = default;
};

/// A quantised matrix on the device of an Ops, poisoned.
class Matrix {
  public:
    Matrix(Ops& ops, Tiles tiles, Shape const& shape)
        : ops_(ops),
          bytes_(ops.device(), static_cast<size_t>(shape.size())),
          scales_(ops.device(), static_cast<size_t>(4 * scales_shape(tiles, shape).size())),
          view_{{static_cast<std::byte*>(bytes_.data()), DType::u8, shape},
                {static_cast<std::byte*>(scales_.data()), DType::f32, scales_shape(tiles, shape)},
                tiles} {
        for (TensorView const& view : {view_.values, view_.scales}) {
            std::vector<unsigned char> const poison(static_cast<size_t>(view.bytes()), 0x55);
            ops.upload(view, poison.data());
        }
    }
    QuantTensor view() const { return view_; }
    Result result() const {
        Result r{std::vector<uint8_t>(static_cast<size_t>(view_.values.size())),
                 std::vector<float>(static_cast<size_t>(view_.scales.size()))};
        ops_.download(r.bytes.data(), view_.values);
        ops_.download(r.scales.data(), view_.scales);
        return r;
    }

  private:
    Ops& ops_;
    Buffer bytes_, scales_;
    QuantTensor view_;
};

class GpuQuantize : public GpuTest {
  protected:
    /// Quantises into both outputs, and into each alone.
    std::vector<Result> quantize(Ops& ops, Tiles tiles, Shape const& shape, Values const& x, bool transposes) {
        Lab lab(ops);
        TensorView const view = lab.compute(shape, x);
        Matrix const to(ops, tiles, shape), alone(ops, tiles, shape);
        ops.quantize({.to = alone.view(), .transposed = {}, .x = view});
        std::vector<Result> results = {alone.result()};
        if (!transposes) return results;
        Matrix const turned(ops, tiles, {shape[1], shape[0]}), turned_alone(ops, tiles, {shape[1], shape[0]});
        ops.quantize({.to = to.view(), .transposed = turned.view(), .x = view});
        ops.quantize({.to = {}, .transposed = turned_alone.view(), .x = view});
        for (Matrix const* m : {&to, &turned, &turned_alone}) results.push_back(m->result());
        return results;
    }
    void expect_same(Tiles tiles, Shape const& shape, Values const& x, bool transposes = true) {
        SCOPED_TRACE(fmt::format("{} {}", tiles == Tiles::rows ? "rows" : "squares", shape.str()));
        auto const expected = quantize(host(), tiles, shape, x, transposes);
        auto const found = quantize(gpu(), tiles, shape, x, transposes);
        ASSERT_EQ(found.size(), expected.size());
        for (size_t i = 0; i < found.size(); ++i) {
            EXPECT_EQ(found[i].scales, expected[i].scales) << i;
            EXPECT_EQ(found[i].bytes, expected[i].bytes) << i;
        }
    }
};

/// Every bf16 value. Each row tile is either all finite or all non-finite.
Values every_bf16() {
    Values x;
    for (uint32_t bits = 0; bits < 0x10000; ++bits) x.push_back(to_float(bf16{static_cast<uint16_t>(bits)}));
    return x;
}

TEST_F(GpuQuantize, GivesTheBitsOfTheHostForEveryBf16) {
    Values const x = every_bf16();
    expect_same(Tiles::rows, {128, 512}, x);
    expect_same(Tiles::squares, {128, 512}, x);
    // With 448 in the tile its scale is 1. The other maxima scale values up or down, or make them subnormal.
    for (double const wanted : {448.0, 3.0, 1e30, 1e-38}) {
        double const largest = to_float(to_bf16(static_cast<float>(wanted)));
        Values beside(x.size());
        for (size_t i = 0; i < x.size(); ++i) {
            bool const fits = std::isfinite(x[i]) && std::abs(x[i]) <= largest;
            beside[i] = i % 128 == 5 ? largest : fits ? x[i] : 0.25 * largest;
        }
        expect_same(Tiles::rows, {128, 512}, beside);
        expect_same(Tiles::squares, {128, 512}, beside);
    }
}

TEST_F(GpuQuantize, GivesTheBitsOfTheHostForManySizes) {
    for (Shape const& shape : {Shape{128, 128}, Shape{256, 640}, Shape{1024, 384}, Shape{128, 2048}}) {
        Values x = random_bf16(shape.size(), 21);
        for (size_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(static_cast<double>(i / 53 % 60) - 40);
        for (int64_t c = 0; c < 128; ++c) x[static_cast<size_t>(3 * shape[1] + c)] = c % 2 == 0 ? 0.0 : -0.0;
        for (Tiles const tiles : {Tiles::rows, Tiles::squares}) expect_same(tiles, shape, x);
    }
    for (int64_t rows : {1, 100, 129}) expect_same(Tiles::rows, {rows, 256}, random_bf16(rows * 256, 22), false);
}

TEST_F(GpuQuantize, CountsAsTheHost) {
    for (Shape const& shape : {Shape{1, 128}, Shape{129, 256}, Shape{128, 128}, Shape{1024, 384}, Shape{512, 8192}})
        for (Tiles const tiles : {Tiles::rows, Tiles::squares}) {
            if (tiles == Tiles::squares && shape[0] % 128 != 0) continue;
            Values x = random_bf16(shape.size(), 24);
            for (size_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(-static_cast<double>(i % 31));
            auto const counts = [&](Ops& ops) {
                Lab lab(ops);
                Buffer const memory(ops.device(), kQuantCounts * sizeof(double));
                TensorView const view(static_cast<std::byte*>(memory.data()), DType::f64, {kQuantCounts});
                ops.fill_zero(view);
                Matrix const to(ops, tiles, shape);
                for (int times = 0; times < 2; ++times)
                    ops.quantize(
                        {.to = to.view(), .transposed = {}, .x = lab.compute(shape, x), .counts_accumulated_K = view});
                std::vector<double> numbers(kQuantCounts);
                ops.download(numbers.data(), view);
                return numbers;
            };
            std::vector<double> const expected = counts(host()), found = counts(gpu());
            EXPECT_NEAR(found[kSquares], expected[kSquares], 1e-5 * expected[kSquares]);
            if (shape[0] >= 128) {
                EXPECT_GT(expected[kUnderflows], 0);
            }
            for (auto const count : {kLargest, kElements, kUnderflows, kTopValues})
                EXPECT_EQ(found[count], expected[count]) << count << " of " << shape.str();
        }
}

TEST_F(GpuQuantize, ABadElementMakesItsTilesNan) {
    for (double const bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
        Values x = random_bf16(256 * 256, 23);
        x[130 * 256 + 7] = bad;
        for (Tiles const tiles : {Tiles::rows, Tiles::squares}) expect_same(tiles, {256, 256}, x);
    }
}

/// Dequantised values.
Values values_of(Result const& r, Tiles tiles, Shape const& shape) {
    std::vector<uint8_t> bytes = r.bytes;
    std::vector<float> scales = r.scales;
    QuantTensor const view{TensorView(bytes.data(), shape), TensorView(scales.data(), scales_shape(tiles, shape)),
                           tiles};
    Values values;
    for (int64_t i = 0; i < shape[0]; ++i)
        for (int64_t j = 0; j < shape[1]; ++j)
            values.push_back(static_cast<double>(to_float(e4m3{bytes[values.size()]})) *
                             scales[static_cast<size_t>(view.scale_index(i, j))]);
    return values;
}

TEST_F(GpuQuantize, TheGradientOfSwigluComesQuantised) {
    for (auto const& [tokens, width] : {std::pair<int64_t, int64_t>{128, 128}, {384, 256}, {256, 1024}}) {
        Shape const shape{tokens, 2 * width}, turned_shape{2 * width, tokens};
        auto const run = [&, tokens = tokens, width = width](Ops& ops) {
            Lab lab(ops);
            Values scaled = random_bf16(tokens * width, 42);
            for (size_t i = 0; i < scaled.size(); ++i) scaled[i] *= std::exp2(static_cast<double>(i / 777 % 9) - 14);
            Matrix const rows(ops, Tiles::rows, shape), turned(ops, Tiles::rows, turned_shape);
            ops.swiglu_backward({.dgate_up_T2F = {},
                                 .dy_TF = lab.compute({tokens, width}, scaled),
                                 .gate_up_T2F = lab.compute(shape, random_bf16(shape.size(), 41, 2.0)),
                                 .quantised_T2F = rows.view(),
                                 .transposed_2FT = turned.view()});
            return std::pair{rows.result(), turned.result()};
        };
        auto const expected = run(host()), found = run(gpu());
        // Values near the midpoint of two E4M3 values may round the other way.
        EXPECT_LT(
            relative_error(values_of(found.first, Tiles::rows, shape), values_of(expected.first, Tiles::rows, shape)),
            2e-3);
        EXPECT_LT(relative_error(values_of(found.second, Tiles::rows, turned_shape),
                                 values_of(expected.second, Tiles::rows, turned_shape)),
                  2e-3);
        EXPECT_EQ(run(gpu()), found) << "differs from run to run";
    }
}

class GpuQuantMatMul : public GpuTest {
  protected:
    struct Problem {
        int64_t m, n, k;
        Tiles tiles;
        bool wide;
    };
    /// The product on an Ops, added to ones if `accumulate`.
    Values product(Ops& ops, Problem const& p, bool accumulate) {
        Lab lab(ops);
        Values x = random_bf16(p.m * p.k, 31), w = random_bf16(p.n * p.k, 32);
        for (size_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(static_cast<double>(i / 128 % 7) - 3);
        TensorView const x_view = lab.compute({p.m, p.k}, x), w_view = lab.compute({p.n, p.k}, w);
        Matrix const a(ops, Tiles::rows, {p.m, p.k}), b(ops, p.tiles, {p.n, p.k});
        ops.quantize({.to = a.view(), .transposed = {}, .x = x_view});
        ops.quantize({.to = b.view(), .transposed = {}, .x = w_view});
        Shape const shape{p.m, p.n};
        Values const ones(static_cast<size_t>(shape.size()), 1.0);
        TensorView const c = p.wide ? lab.main(shape, ones) : lab.compute(shape, ones);
        ops.matmul8({.c = c, .a = a.view(), .b = b.view(), .accumulate = accumulate});
        return lab.values(c);
    }
};

TEST_F(GpuQuantMatMul, IsTheProductOfWhatOperandsStandFor) {
    for (Tiles const tiles : {Tiles::rows, Tiles::squares})
        for (bool const wide : {true, false})
            for (bool const accumulate : {false, true})
                for (auto const& [m, n, k] :
                     {std::array<int64_t, 3>{128, 128, 128}, {256, 640, 384}, {512, 384, 1024}, {128, 256, 4096}}) {
                    Problem const p{m, n, k, tiles, wide};
                    Values const expected = product(host(), p, accumulate), found = product(gpu(), p, accumulate);
                    double const error = relative_error(found, expected);
                    std::string const what =
                        fmt::format("{} x {} x {} {} {} {}", m, n, k, tiles == Tiles::rows ? "rows" : "squares",
                                    wide ? "fp32" : "bf16", accumulate ? "+=" : "=");
                    // A bf16 result has one rounding: 1.7e-3. A bf16 sum has up to three, because cuBLASLt may add two
                    // partial products to the old value in bf16.
                    EXPECT_LT(error, wide ? 1e-3 : accumulate ? 3e-3 : 2e-3) << what;
                    EXPECT_EQ(product(gpu(), p, accumulate), found) << "differs from run to run";
                }
}

TEST_F(GpuQuantMatMul, ABadElementReachesItsRow) {
    Lab lab(gpu());
    Values x = random_bf16(128 * 256, 33);
    x[5 * 256 + 200] = std::numeric_limits<double>::infinity();
    TensorView const view = lab.compute({128, 256}, x), c = lab.compute({128, 128});
    Matrix const a(gpu(), Tiles::rows, {128, 256}), b(gpu(), Tiles::squares, {128, 256});
    gpu().quantize({.to = a.view(), .transposed = {}, .x = view});
    gpu().quantize({.to = b.view(), .transposed = {}, .x = lab.compute({128, 256}, random_bf16(128 * 256, 34))});
    gpu().matmul8({.c = c, .a = a.view(), .b = b.view()});
    Values const found = lab.values(c);
    for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(std::isnan(found[i]), i / 128 == 5) << i;
}

}  // namespace

}  // namespace perigee::testing
