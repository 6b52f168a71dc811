// Quantised matrices: E4M3 bytes with one fp32 power-of-two scale per tile. A product reduces over the last dimension
// of both operands, in whole tiles. Scales are in cuBLASLt's layout.
#pragma once

#include "base/fp8.h"
#include "tensor/tensor.h"

namespace perigee {

inline constexpr int64_t kQuantTile = 128;

/// Shape of a tile. rows: 1 x 128, for activations and gradients. squares: 128 x 128, for weights and for x^T in weight
/// gradients.
enum class Tiles : uint8_t { rows, squares };

/// Shape of the scales of a matrix [R, C]. C is a multiple of 128; with squares R is too.
inline Shape scales_shape(Tiles tiles, Shape const& matrix) {
    int64_t const across = matrix[1] / kQuantTile;
    if (tiles == Tiles::rows) return {across, matrix[0]};
    return {matrix[0] / kQuantTile, (across + 3) / 4 * 4};
}

template <class View>
struct BasicQuantized {
    View values;  ///< u8 [R, C]
    View scales;  ///< f32, rows: [C / 128, R]; squares: [R / 128, C / 128 rounded up to a multiple of 4]
    Tiles tiles = Tiles::rows;

    bool empty() const { return values.empty(); }
    /// Index into `scales` for element (r, c) of the matrix.
    int64_t scale_index(int64_t r, int64_t c) const {
        int64_t const across = c / kQuantTile;
        return tiles == Tiles::rows ? across * scales[1] + r : r / kQuantTile * scales[1] + across;
    }
    operator BasicQuantized<ConstView>() const requires(!std::is_same_v<View, ConstView>) {
        return {values, scales, tiles};
    }
};
using QuantTensor = BasicQuantized<TensorView>;
using ConstQuantTensor = BasicQuantized<ConstView>;

}  // namespace perigee
