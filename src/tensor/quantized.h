// Quantised matrices: E4M3 bytes, and an fp32 power of two for each tile that they are multiplied by. A product takes
// them with the dimension that it sums over last, in whole tiles. The order of scales is the one cuBLASLt reads.
#pragma once

#include "base/fp8.h"
#include "tensor/tensor.h"

namespace perigee {

inline constexpr int64_t kQuantTile = 128;

/// What shares a scale: 128 neighbours of a row, for activations and gradients, or 128 x 128, for weights.
enum class Tiles : uint8_t { rows, squares };

/// Of a matrix [R, C], C a multiple of 128, and R too where tiles are squares.
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
    /// Element of `scales` for element (r, c) of the matrix.
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
