// Quantised matrices on the host: every conversion, scales, non-finite elements, transposes and products.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/op_check.h"

namespace perigee::testing {

namespace {

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

/// Values of E4M3 by definition, ascending: 4 exponent bits with bias 7, 3 mantissa bits.
std::vector<double> e4m3_magnitudes() {
    std::vector<double> values;
    for (int exponent = 0; exponent < 16; ++exponent)
        for (int fraction = 0; fraction < 8; ++fraction)
            if (exponent < 15 || fraction < 7)
                values.push_back(exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10));
    return values;
}

/// Index of the nearest magnitude; ties go to the even index.
size_t nearest(std::vector<double> const& magnitudes, double x) {
    auto const above = std::ranges::lower_bound(magnitudes, x);
    if (above == magnitudes.end()) return magnitudes.size() - 1;
    auto const i = static_cast<size_t>(above - magnitudes.begin());
    if (i == 0) return 0;
    double const up = magnitudes[i] - x, down = x - magnitudes[i - 1];
    return up < down || (up == down && i % 2 == 0) ? i : i - 1;
}

TEST(E4m3, HoldsTheValuesOfItsDefinition) {
    auto const magnitudes = e4m3_magnitudes();
    ASSERT_EQ(magnitudes.size(), 127u);
    EXPECT_EQ(magnitudes.back(), 448);
    for (unsigned bits = 0; bits < 127; ++bits) {
        EXPECT_EQ(to_float(e4m3{static_cast<uint8_t>(bits)}), magnitudes[bits]);
        EXPECT_EQ(to_float(e4m3{static_cast<uint8_t>(bits | 0x80)}), -magnitudes[bits]);
        EXPECT_EQ(std::signbit(to_float(e4m3{static_cast<uint8_t>(bits | 0x80)})), true);
    }
    for (uint8_t const nan : {0x7f, 0xff}) EXPECT_TRUE(std::isnan(to_float(e4m3{nan})));
}

TEST(E4m3, IsTheNearestOfEveryBf16) {
    auto const magnitudes = e4m3_magnitudes();
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
        float const x = from_bits(bits << 16);
        uint8_t const found = to_e4m3(x).bits, sign = bits & 0x8000 ? 0x80 : 0;
        if (!std::isfinite(x))
            ASSERT_EQ(found, sign | kE4m3Nan) << x;
        else
            ASSERT_EQ(found, sign | nearest(magnitudes, std::abs(static_cast<double>(x)))) << x;
    }
}

TEST(E4m3, TakesTiesToEven) {
    auto const magnitudes = e4m3_magnitudes();
    for (size_t i = 0; i + 1 < magnitudes.size(); ++i) {
        auto const middle = static_cast<float>((magnitudes[i] + magnitudes[i + 1]) / 2);
        EXPECT_EQ(to_e4m3(middle).bits, i % 2 == 0 ? i : i + 1);
        EXPECT_EQ(to_e4m3(std::nextafter(middle, 0.0f)).bits, i);
        EXPECT_EQ(to_e4m3(std::nextafter(middle, 1000.0f)).bits, i + 1);
    }
}

TEST(E4m3, ScalesAreTheSmallestPowersOfTwoThatFit) {
    auto const scale = [](float amax) { return from_bits(scale_bits(std::bit_cast<uint32_t>(amax))); };
    EXPECT_EQ(scale(0), 1);
    EXPECT_EQ(scale(448), 1);
    EXPECT_EQ(scale(std::nextafter(448.0f, 1000.0f)), 2);
    EXPECT_EQ(scale(224), 0.5);
    for (float const bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
        EXPECT_EQ(scale(bad), 1);
    for (uint32_t bits = 1; bits < 0x7f80; ++bits) {  // every finite positive bf16
        float const amax = from_bits(bits << 16), s = scale(amax);
        int exponent = 0;
        ASSERT_EQ(std::frexp(s, &exponent), 0.5) << amax;
        ASSERT_LE(amax / s, 448) << amax;
        ASSERT_TRUE(amax / s > 224 || s == 0x1p-126f) << amax;
        ASSERT_EQ(from_bits(inverse_scale_bits(std::bit_cast<uint32_t>(s))) * s, 1) << amax;
    }
}

/// A quantised matrix in its own memory, poisoned.
struct Quantized {
    Tiles tiles;
    Shape shape;
    std::vector<uint8_t> bytes;
    std::vector<float> scales;

    Quantized(Tiles kind, Shape const& matrix)
        : tiles(kind),
          shape(matrix),
          bytes(static_cast<size_t>(matrix.size()), 0x55),
          scales(poisoned<float>(scales_shape(kind, matrix).size())) {}
    QuantTensor view() {
        return {TensorView(bytes.data(), shape), TensorView(scales.data(), scales_shape(tiles, shape)), tiles};
    }
    float scale(int64_t r, int64_t c) { return scales[static_cast<size_t>(view().scale_index(r, c))]; }
    double value(int64_t r, int64_t c) {
        return static_cast<double>(to_float(e4m3{bytes[static_cast<size_t>(r * shape[1] + c)]})) * scale(r, c);
    }
};

class QuantizeTest : public ::testing::TestWithParam<Tiles> {
  protected:
    void quantize(std::vector<float>& x, Shape const& shape) {
        matrix = x;
        to.emplace(GetParam(), shape);
        transposed.emplace(GetParam(), Shape{shape[1], shape[0]});
        ops->quantize({.to = to->view(), .transposed = transposed->view(), .x = TensorView(x.data(), shape)});
    }
    /// Largest magnitude in the tile of element (r, c).
    float amax(int64_t r, int64_t c) const {
        int64_t const rows = GetParam() == Tiles::squares ? 128 : 1, r0 = r / rows * rows, c0 = c / 128 * 128;
        float most = 0;
        for (int64_t i = r0; i < r0 + rows; ++i)
            for (int64_t j = c0; j < c0 + 128; ++j)
                most = std::max(most, std::abs(matrix[static_cast<size_t>(i * to->shape[1] + j)]));
        return most;
    }

    std::unique_ptr<Device> device = make_host_device();
    std::unique_ptr<Ops> ops = make_host_ops(*device, 2);
    std::vector<float> matrix;
    std::optional<Quantized> to, transposed;
};

TEST_P(QuantizeTest, DividesEachTileByItsScale) {
    Shape const shape{256, 384};
    auto x = random_normal<float>(shape.size(), 3);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(static_cast<float>(i / 97 % 40) - 20);
    for (int64_t c = 0; c < 384; ++c) x[static_cast<size_t>(5 * 384 + c)] = 0;  // a row of zeros
    quantize(x, shape);
    for (int64_t r = 0; r < 256; ++r)
        for (int64_t c = 0; c < 384; ++c) {
            float const s = to->scale(r, c), value = x[static_cast<size_t>(r * 384 + c)];
            if (c % 128 == 0 && (r % 128 == 0 || GetParam() == Tiles::rows)) {
                ASSERT_EQ(s, from_bits(scale_bits(std::bit_cast<uint32_t>(amax(r, c)))));
            }
            ASSERT_EQ(to->value(r, c), static_cast<double>(to_float(to_e4m3(value / s))) * s);
        }
    if (GetParam() == Tiles::rows) {
        EXPECT_EQ(to->scale(5, 0), 1);
    }
}

TEST_P(QuantizeTest, CountsWhatItQuantises) {
    Shape const shape{128, 256};
    auto x = random_normal<float>(shape.size(), 3);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(-static_cast<float>(i % 31));
    x[7] = 0, x[300] = -1000, x[456] = 448;
    std::vector<double> counts(kQuantCounts, 0.0);
    Quantized result(GetParam(), shape);
    int64_t underflows = 0, top = 0;
    double squares = 0;
    for (int times = 0; times < 2; ++times)
        ops->quantize({.to = result.view(),
                       .transposed = {},
                       .x = TensorView(x.data(), shape),
                       .counts_accumulated_K = TensorView(counts.data(), Shape{kQuantCounts})});
    for (int64_t r = 0; r < shape[0]; ++r)
        for (int64_t c = 0; c < shape[1]; ++c) {
            float const value = x[static_cast<size_t>(r * shape[1] + c)];
            double const scaled = result.value(r, c) / result.scale(r, c);
            underflows += value != 0 && scaled == 0;
            top += std::abs(scaled) == 448;
            squares += static_cast<double>(value) * value;
        }
    EXPECT_GT(underflows, 1000);
    EXPECT_GT(top, 0);
    EXPECT_EQ(counts[kLargest], 1000);
    EXPECT_NEAR(counts[kSquares], 2 * squares, 1e-9 * squares);
    EXPECT_EQ(counts[kElements], 2 * 128 * 256);
    EXPECT_EQ(counts[kUnderflows], static_cast<double>(2 * underflows));
    EXPECT_EQ(counts[kTopValues], static_cast<double>(2 * top));
}

TEST_P(QuantizeTest, TransposesTheValuesThatFit) {
    Shape const shape{256, 384};
    auto x = random_normal<float>(shape.size(), 4);
    for (int64_t r = 0; r < 256; ++r)  // rows differ in magnitude by less than the range of E4M3
        for (int64_t c = 0; c < 384; ++c) {
            float& value = x[static_cast<size_t>(r * 384 + c)];
            value = std::copysign(std::exp2(static_cast<float>(r % 5) + std::round(std::abs(value))), value);
        }
    quantize(x, shape);
    for (int64_t r = 0; r < 256; ++r)
        for (int64_t c = 0; c < 384; ++c) {
            ASSERT_EQ(to->value(r, c), x[static_cast<size_t>(r * 384 + c)]) << r << " " << c;
            ASSERT_EQ(transposed->value(c, r), to->value(r, c)) << r << " " << c;
        }
}

TEST_P(QuantizeTest, RoundsTheTransposeOnlyWhereItIsSmallBesideItsTile) {
    Shape const shape{128, 128};
    auto x = random_normal<float>(shape.size(), 5);
    for (int64_t c = 0; c < 128; ++c) x[static_cast<size_t>(c)] *= 1e5f;  // the first row sets every scale
    quantize(x, shape);
    int64_t rounded = 0;
    for (int64_t r = 0; r < 128; ++r)
        for (int64_t c = 0; c < 128; ++c) {
            double const value = to->value(r, c);
            float const s = transposed->scale(c, r);
            ASSERT_EQ(transposed->value(c, r), static_cast<double>(to_float(to_e4m3(float(value) / s))) * s);
            if (std::abs(value) >= s * 0x1p-6) {  // a normal number in E4M3
                ASSERT_EQ(transposed->value(c, r), value);
            }
            rounded += transposed->value(c, r) != value;
        }
    if (GetParam() == Tiles::squares) {
        EXPECT_EQ(rounded, 0);
    } else {
        EXPECT_GT(rounded, 10000);
    }
}

TEST_P(QuantizeTest, ABadElementMakesItsTilesNanAndNoOther) {
    Shape const shape{256, 256};
    for (float const bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
        auto x = random_normal<float>(shape.size(), 6);
        x[130 * 256 + 7] = bad;
        quantize(x, shape);
        for (int64_t r = 0; r < 256; ++r)
            for (int64_t c = 0; c < 256; ++c) {
                bool const in_row = r == 130 && c < 128, in_tile = r >= 128 && c < 128;
                bool const squares = GetParam() == Tiles::squares;
                ASSERT_EQ(std::isnan(to->value(r, c)), squares ? in_tile : in_row) << r << " " << c;
                ASSERT_EQ(std::isnan(transposed->value(c, r)), in_tile) << r << " " << c;
            }
    }
}

TEST_P(QuantizeTest, OutputsDoNotDependOnEachOther) {
    Shape const shape{128, 256};
    auto x = random_normal<float>(shape.size(), 7);
    quantize(x, shape);
    Quantized plain(GetParam(), shape), turned(GetParam(), {256, 128});
    TensorView const view(x.data(), shape);
    ops->quantize({.to = plain.view(), .transposed = {}, .x = view});
    ops->quantize({.to = {}, .transposed = turned.view(), .x = view});
    EXPECT_EQ(plain.bytes, to->bytes);
    EXPECT_EQ(plain.scales, to->scales);
    EXPECT_EQ(turned.bytes, transposed->bytes);
    EXPECT_EQ(turned.scales, transposed->scales);
}

INSTANTIATE_TEST_SUITE_P(, QuantizeTest, ::testing::Values(Tiles::rows, Tiles::squares),
                         [](auto const& tiles) { return tiles.param == Tiles::rows ? "Rows" : "Squares"; });

TEST(QuantMatMul, MultipliesTheValuesThatOperandsStandFor) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 2);
    int64_t const m = 37, n = 256, k = 384;
    for (Tiles const tiles : {Tiles::rows, Tiles::squares}) {
        Quantized a(Tiles::rows, {m, k}), b(tiles, {n, k});
        auto xa = random_normal<float>(m * k, 8), xb = random_normal<float>(n * k, 9);
        ops->quantize({.to = a.view(), .transposed = {}, .x = TensorView(xa.data(), {m, k})});
        ops->quantize({.to = b.view(), .transposed = {}, .x = TensorView(xb.data(), {n, k})});
        auto c = poisoned<float>(m * n);
        TensorView const view(c.data(), {m, n});
        ops->matmul8({.c = view, .a = a.view(), .b = b.view()});
        std::vector<double> expected, plain;
        for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j) {
                double sum = 0, of_inputs = 0;
                for (int64_t l = 0; l < k; ++l) {
                    sum += a.value(i, l) * b.value(j, l);
                    of_inputs +=
                        static_cast<double>(xa[static_cast<size_t>(i * k + l)]) * xb[static_cast<size_t>(j * k + l)];
                }
                expected.push_back(sum);
                plain.push_back(of_inputs);
            }
        EXPECT_LT(relative_error(c, expected), 1e-6);
        double const rounding = relative_error(plain, expected);
        EXPECT_GT(rounding, 0.01);  // two operands with 3 mantissa bits
        EXPECT_LT(rounding, 0.06);
        std::vector<float> const once = c;
        ops->matmul8({.c = view, .a = a.view(), .b = b.view(), .accumulate = true});
        for (size_t i = 0; i < c.size(); ++i) ASSERT_NEAR(c[i], 2 * once[i], 1e-5 * std::abs(once[i]) + 1e-4);
    }
}

TEST(QuantMatMul, RefusesWhatDoesNotFit) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 1);
    Quantized a(Tiles::rows, {128, 256}), b(Tiles::squares, {128, 256}), shorter(Tiles::rows, {128, 128});
    std::vector<float> c(128 * 128), x(128 * 200);
    TensorView const view(c.data(), {128, 128});
    EXPECT_THROW(ops->matmul8({.c = view, .a = b.view(), .b = a.view()}), Error);
    EXPECT_THROW(ops->matmul8({.c = view, .a = a.view(), .b = shorter.view()}), Error);
    Quantized uneven(Tiles::rows, {100, 128});
    EXPECT_THROW(ops->quantize({.to = {}, .transposed = uneven.view(), .x = TensorView(x.data(), {128, 100})}), Error);
    EXPECT_THROW(ops->quantize({.to = {}, .transposed = {}, .x = view}), Error);
}

}  // namespace

}  // namespace perigee::testing
