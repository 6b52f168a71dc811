#include <algorithm>
#include <array>
#include <cmath>

#include "ops/host/functions.h"
#include "ops/host/parallel.h"

namespace perigee::host {

namespace {

uint32_t magnitude_bits(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }
float as_float(uint32_t bits) { return std::bit_cast<float>(bits); }

/// Finds a tile's scale, then quantises its values.
template <class Real>
class TileQuantizer {
  public:
    void see(Real x) { amax_ = std::max(amax_, magnitude_bits(static_cast<float>(x))); }
    float scale() const { return as_float(scale_bits(amax_)); }
    uint8_t operator()(Real x) const {
        if (!is_finite_amax(amax_)) return kE4m3Nan;
        return to_e4m3(static_cast<float>(x) * as_float(inverse_scale_bits(scale_bits(amax_)))).bits;
    }

  private:
    uint32_t amax_ = 0;
};

/// Quantises one tile: 128 x 128, or 1 x 128.
template <class Real>
void quantize_tile(QuantTensor const& to, Real const* x, int64_t row, int64_t column) {
    int64_t const width = to.values[1], rows = to.tiles == Tiles::squares ? kQuantTile : 1;
    TileQuantizer<Real> tile;
    auto const each = [&](auto visit) {
        for (int64_t r = row; r < row + rows; ++r)
            for (int64_t c = column; c < column + kQuantTile; ++c) visit(r * width + c);
    };
    each([&](int64_t i) { tile.see(x[i]); });
    auto* const bytes = to.values.template as<uint8_t>();
    each([&](int64_t i) { bytes[i] = tile(x[i]); });
    to.scales.template as<float>()[to.scale_index(row, column)] = tile.scale();
}

/// Quantises all tiles. Padding of square-tile scales is zero.
template <class Real>
void quantize_all(QuantTensor const& to, Real const* x) {
    int64_t const width = to.values[1], step = to.tiles == Tiles::squares ? kQuantTile : 1;
    if (to.tiles == Tiles::squares) std::fill_n(to.scales.as<float>(), to.scales.size(), 0.0f);
    parallel_ranges(to.values[0] / step, row_grain(width * step), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin * step; r < end * step; r += step)
            for (int64_t c = 0; c < width; c += kQuantTile) quantize_tile(to, x, r, c);
    });
}

/// Adds x, quantised as `to`, to the counts.
template <class Real>
void count(double* counts, QuantTensor const& to, Real const* x) {
    auto const* const bytes = to.values.as<uint8_t>();
    uint32_t largest = 0;
    for (int64_t i = 0; i < to.values.size(); ++i) {
        auto const value = static_cast<double>(x[i]);
        unsigned const magnitude = bytes[i] & 0x7fu;
        largest = std::max(largest, magnitude_bits(static_cast<float>(x[i])));
        counts[kSquares] += value * value;
        counts[kUnderflows] += value != 0 && magnitude == 0 ? 1 : 0;
        counts[kTopValues] += magnitude == kE4m3Largest ? 1 : 0;
    }
    counts[kElements] += static_cast<double>(to.values.size());
    auto const beyond = [](double a, double b) { return std::isnan(b) || a < b ? b : a; };
    counts[kLargest] = beyond(counts[kLargest], as_float(largest));
}

/// Dequantised transpose of x, row by row.
template <class Real>
std::vector<Real> dequantized_transpose(ConstQuantTensor const& x) {
    int64_t const rows = x.values[0], columns = x.values[1];
    std::vector<Real> plain(static_cast<size_t>(rows * columns)), turned(plain.size());
    dequantize(plain.data(), x);
    parallel_ranges(columns, row_grain(rows), [&](int64_t begin, int64_t end) {
        for (int64_t c = begin; c < end; ++c)
            for (int64_t r = 0; r < rows; ++r)
                turned[static_cast<size_t>(c * rows + r)] = plain[static_cast<size_t>(r * columns + c)];
    });
    return turned;
}

/// Transposes bytes and scales of a matrix with square tiles.
void transpose_squares(QuantTensor const& to, ConstQuantTensor const& from) {
    int64_t const rows = from.values[0], columns = from.values[1];
    auto const* const bytes = from.values.as<uint8_t>();
    auto const* const scales = from.scales.as<float>();
    auto* const to_bytes = to.values.as<uint8_t>();
    auto* const to_scales = to.scales.as<float>();
    std::fill_n(to_scales, to.scales.size(), 0.0f);
    for (int64_t c = 0; c < columns; ++c)
        for (int64_t r = 0; r < rows; ++r) to_bytes[c * rows + r] = bytes[r * columns + c];
    for (int64_t c = 0; c < columns; c += kQuantTile)
        for (int64_t r = 0; r < rows; r += kQuantTile) to_scales[to.scale_index(c, r)] = scales[from.scale_index(r, c)];
}

}  // namespace

template <class Real>
void dequantize(Real* to, ConstQuantTensor const& x) {
    int64_t const width = x.values[1];
    auto const* const bytes = x.values.as<uint8_t>();
    auto const* const scales = x.scales.as<float>();
    std::array<float, 256> table;
    for (unsigned i = 0; i < table.size(); ++i) table[i] = to_float(e4m3{static_cast<uint8_t>(i)});
    parallel_ranges(x.values[0], row_grain(width), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
            for (int64_t c = 0; c < width; c += kQuantTile) {
                auto const scale = static_cast<Real>(scales[x.scale_index(r, c)]);
                for (int64_t i = r * width + c; i < r * width + c + kQuantTile; ++i)
                    to[i] = static_cast<Real>(table[bytes[i]]) * scale;
            }
    });
}

template <class Real>
void quantize(Quantize const& args) {
    Real const* const x = args.x.as<Real>();
    if (!args.to.empty()) quantize_all(args.to, x);
    if (!args.counts_accumulated_K.empty()) count(args.counts_accumulated_K.as<double>(), args.to, x);
    if (args.transposed.empty()) return;
    QuantTensor to = args.to;
    std::vector<uint8_t> bytes;
    std::vector<float> scales;
    if (to.empty()) {
        to.tiles = args.transposed.tiles;
        Shape const shape = args.x.shape, of_scales = scales_shape(to.tiles, shape);
        bytes.resize(static_cast<size_t>(shape.size()));
        scales.resize(static_cast<size_t>(of_scales.size()));
        to.values = TensorView(bytes.data(), shape), to.scales = TensorView(scales.data(), of_scales);
        quantize_all(to, x);
    }
    if (to.tiles == Tiles::squares) return transpose_squares(args.transposed, to);
    quantize_all(args.transposed, dequantized_transpose<Real>(to).data());
}

template void quantize<float>(Quantize const&);
template void quantize<double>(Quantize const&);
template void dequantize<float>(float*, ConstQuantTensor const&);
template void dequantize<double>(double*, ConstQuantTensor const&);

}  // namespace perigee::host
