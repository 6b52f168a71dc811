#include "model/linear.h"

#include <algorithm>

namespace perigee {

namespace {

QuantTensor matrix_in(QuantPlace const& place, Tiles tiles, int64_t rows, int64_t columns) {
    Shape const shape{rows, columns}, scales = scales_shape(tiles, shape);
    return {.values = place.bytes.rows(0, shape.size()).reshape(shape),
            .scales = place.scales.rows(0, scales.size()).reshape(scales),
            .tiles = tiles};
}

QuantPlace allocate_place(Arena& arena, char const* name, int64_t elements) {
    return {.bytes = arena.allocate(name, DType::u8, {elements}),
            .scales = arena.allocate(name, DType::f32, {elements / kQuantTile})};
}

/// Where an operand of a product is counted.
TensorView counts_of(Pass const& pass, BlockLinear linear, Operand operand) {
    TensorView const counts = operand == Operand::gradient ? pass.backward_counts : pass.forward_counts;
    bool const again = operand == Operand::weight && pass.first_row > 0;  // for another chunk of the MLP
    if (counts.empty() || again) return {};
    int64_t const place = (static_cast<int64_t>(linear) * kOperands + static_cast<int64_t>(operand)) * kQuantCounts;
    return counts.rows(place, place + kQuantCounts);
}

/// dx = dy W with quantised operands.
void quantised_input_gradient(Pass const& pass, LinearBackward const& x, QuantTensor const& dy) {
    QuantTensor const w_IO = matrix_in(pass.quantised->weight, Tiles::squares, x.w_OI[1], x.w_OI[0]);
    pass.ops.quantize({.to = {}, .transposed = w_IO, .x = x.w_OI});
    pass.ops.matmul8({.c = x.dx_TI, .a = dy, .b = w_IO, .accumulate = x.adds});
}

void quantised_weight_gradient(Pass const& pass, LinearBackward const& x, QuantTensor const& dy_OT) {
    QuantTensor const x_IT = matrix_in(pass.quantised->input, Tiles::squares, x.x_TI[1], x.x_TI[0]);
    pass.ops.quantize({.to = {}, .transposed = x_IT, .x = x.x_TI});
    pass.ops.matmul8({.c = x.dw_OI, .a = dy_OT, .b = x_IT, .accumulate = !pass.fresh});
}

}  // namespace

void linear(Pass const& pass, TensorView y_TO, ConstView x_TI, Linear const& weights) {
    ConstView const w_OI = weights.w_OI;
    if (!pass.takes_fp8({x_TI[0], w_OI[0], w_OI[1]}))
        return pass.ops.matmul({.c = y_TO, .a = x_TI, .b = w_OI, .transpose_b = true});
    QuantTensor const x = matrix_in(pass.quantised->rows, Tiles::rows, x_TI[0], x_TI[1]);
    QuantTensor const w = matrix_in(pass.quantised->weight, Tiles::squares, w_OI[0], w_OI[1]);
    auto const counts = [&](Operand operand) { return counts_of(pass, weights.of, operand); };
    pass.ops.quantize({.to = x, .transposed = {}, .x = x_TI, .counts_accumulated_K = counts(Operand::input)});
    pass.ops.quantize({.to = w, .transposed = {}, .x = w_OI, .counts_accumulated_K = counts(Operand::weight)});
    pass.ops.matmul8({.c = y_TO, .a = x, .b = w});
}

OutputGradient quantised_gradient(Pass const& pass, LinearShape const& shape) {
    if (!pass.takes_fp8(shape) || pass.precision->wgrad != GradientPrecision::fp8) return {};
    return {.rows_TO = matrix_in(pass.quantised->rows, Tiles::rows, shape.tokens, shape.outputs),
            .columns_OT = matrix_in(pass.quantised->columns, Tiles::rows, shape.outputs, shape.tokens)};
}

void linear_backward(Pass const& pass, LinearBackward const& x) {
    int64_t const tokens = x.dy.shape()[0], outputs = x.dy.shape()[1];
    bool const wants_dw = !x.dw_OI.empty(), wants_dx = !x.dx_TI.empty();
    bool const fp8 = (wants_dw || wants_dx) && pass.takes_fp8({tokens, outputs, wants_dw ? x.dw_OI[1] : x.w_OI[1]});
    bool const fp8_wgrad = wants_dw && fp8 && pass.precision->wgrad == GradientPrecision::fp8;
    ConstView const dy_TO = x.dy.plain_TO;
    if (wants_dw && !fp8_wgrad)
        pass.ops.matmul({.c = x.dw_OI, .a = dy_TO, .b = x.x_TI, .transpose_a = true, .accumulate = !pass.fresh});
    if (!x.x_TI.empty()) adapters_backward(pass, x.dadapters, dy_TO, x.x_TI, x.adapters);
    if (wants_dx && !fp8) {
        pass.ops.matmul({.c = x.dx_TI, .a = dy_TO, .b = x.w_OI, .accumulate = x.adds});
        adapters_input_backward(pass, x.dx_TI, x.adapters);
    }
    if (!fp8_wgrad && !(wants_dx && fp8)) return;
    QuantTensor rows_TO = x.dy.rows_TO, columns_OT = x.dy.columns_OT;
    if (rows_TO.empty()) {
        if (wants_dx) rows_TO = matrix_in(pass.quantised->rows, Tiles::rows, tokens, outputs);
        if (fp8_wgrad) columns_OT = matrix_in(pass.quantised->columns, Tiles::rows, outputs, tokens);
        pass.ops.quantize({.to = rows_TO,
                           .transposed = columns_OT,
                           .x = dy_TO,
                           .counts_accumulated_K = wants_dx ? counts_of(pass, x.of, Operand::gradient) : TensorView()});
    }
    if (fp8_wgrad) quantised_weight_gradient(pass, x, columns_OT);
    if (wants_dx) quantised_input_gradient(pass, x, rows_TO);
}

void spread_backward(Pass const& pass, TensorView dx_PI, Linear const& dw, OutputGradient const& dy, TensorView x_PI,
                     Linear const& w) {
    // With several ranks, x of all tokens and the partial sums of dx share memory, so dW is computed first.
    linear_backward(pass, {.dx_TI = pass.stream.partial(dx_PI),
                           .dw_OI = dw.w_OI,
                           .dy = dy,
                           .x_TI = pass.stream.gather(x_PI),
                           .w_OI = w.w_OI,
                           .of = w.of,
                           .dadapters = dw.adapters,
                           .adapters = w.adapters});
    pass.stream.add_up(dx_PI);
}

QuantMemory allocate_quantised(Arena& arena, Pass const& pass, PrecisionOptions const& precision) {
    int64_t rows = 0, columns = 0, input = 0, weight = 0;
    bool const wgrad = precision.wgrad == GradientPrecision::fp8;
    for (auto const& [name, shape] :
         block_linears(pass.options, pass.tokens, pass.mlp_tokens(), pass.mesh.shape().tp)) {
        // Parts of the fused projection can be separate products. A part may have valid extents if the whole does not.
        auto const up = [](int64_t extent) { return (extent + kQuantTile - 1) / kQuantTile * kQuantTile; };
        int64_t const tokens = up(shape.tokens), outputs = up(shape.outputs), inputs = up(shape.inputs);
        rows = std::max(rows, tokens * std::max(outputs, inputs));
        columns = std::max(columns, wgrad ? tokens * outputs : 0);
        input = std::max(input, wgrad ? tokens * inputs : 0);
        auto const padded = [](int64_t extent) {  // rows of 128 x 128 scales are padded to a multiple of four
            return (extent + 4 * kQuantTile - 1) / (4 * kQuantTile) * (4 * kQuantTile);
        };
        weight = std::max({weight, outputs * padded(inputs), inputs * padded(outputs)});
    }
    return {.rows = allocate_place(arena, "quantised rows", rows),
            .columns = allocate_place(arena, "quantised columns", columns),
            .input = allocate_place(arena, "quantised input", input),
            .weight = allocate_place(arena, "quantised weights", weight)};
}

}  // namespace perigee
