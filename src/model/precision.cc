#include "model/precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tensor/quantized.h"

namespace perigee {

void describe(Schema& schema, EdgeLayers& options) {
    schema.add("first", options.first, between(0, kMostLayers), "layers at the beginning")
        .add("last", options.last, between(0, kMostLayers), "layers at the end");
}

void describe(Schema& schema, PrecisionOptions& options) {
    schema
        .choice("linear", options.linear,
                {{"bf16", LinearPrecision::bf16},
                 {"fp8_block", LinearPrecision::fp8_block},
                 {"auto", LinearPrecision::automatic}},
                "operands of the blocks' matrix products in training. bf16 (fp32 on the CPU). fp8_block: E4M3 with a "
                "power-of-two scale per tile, for products whose extents are all multiples of 128. auto: fp8_block "
                "only for products large enough to gain from it. `check` prints the precision of each product; "
                "docs/fp8.md has the details")
        .choice("wgrad", options.wgrad, {{"fp8", GradientPrecision::fp8}, {"bf16", GradientPrecision::bf16}},
                "operands of weight-gradient products if precision.linear is not bf16")
        .section("bf16_layers", options.bf16_layers, "Layers whose products stay in bf16.")
        .add("report_every", options.report_every, at_least(0),
             "steps between reports of quantised operands in metrics.jsonl, per layer: largest magnitude over root "
             "mean square, and the shares that round to zero and to the largest value. 0: never");
}

std::vector<std::string> problems(PrecisionOptions const& options, ModelOptions const& model) {
    auto const [first, last] = options.bf16_layers;
    if (first + last <= model.num_hidden_layers) return {};
    return {
        fmt::format("precision.bf16_layers.first ({}) and precision.bf16_layers.last ({}) together must be at most "
                    "model.num_hidden_layers ({})",
                    first, last, model.num_hidden_layers)};
}

bool takes_fp8(PrecisionOptions const& options, LinearShape const& shape) {
    if (options.linear == LinearPrecision::bf16) return false;
    for (int64_t const extent : {shape.tokens, shape.outputs, shape.inputs})
        if (extent == 0 || extent % kQuantTile != 0) return false;
    if (options.linear == LinearPrecision::fp8_block) return true;
    // Casts cost time per element, products save time per FLOP. On an H100, 2048 x 2048 gains nothing.
    auto const [less, more] = std::minmax(shape.outputs, shape.inputs);
    return shape.tokens >= 4096 && less >= 2048 && more >= 3072;
}

bool in_fp8_layers(PrecisionOptions const& options, int64_t layer, int64_t layers) {
    return options.bf16_layers.first <= layer && layer < layers - options.bf16_layers.last;
}

std::vector<NamedLinear> block_linears(ModelOptions const& model, int64_t tokens, int64_t mlp_tokens, int64_t tp) {
    int64_t const queries = model.num_attention_heads / tp * model.head_size(),
                  keys = model.kv_heads() / tp * model.head_size();
    int64_t const hidden = model.hidden_size, intermediate = model.intermediate_size / tp;
    return {{"qkv", {tokens, queries + 2 * keys, hidden}},
            {"o", {tokens, hidden, queries}},
            {"gate_up", {mlp_tokens, 2 * intermediate, hidden}},
            {"down", {mlp_tokens, hidden, intermediate}}};
}

double fp8_share(PrecisionOptions const& options, ModelOptions const& model, int64_t tokens, int64_t mlp_tokens,
                 int64_t tp) {
    int64_t const layers = model.num_hidden_layers;
    double quantised_layers = 0;
    for (int64_t layer = 0; layer < layers; ++layer) quantised_layers += in_fp8_layers(options, layer, layers);
    double fp8 = 0, all = 3.0 * static_cast<double>(tokens * model.vocab_size / tp * model.hidden_size);
    for (NamedLinear const& linear : block_linears(model, tokens, mlp_tokens, tp)) {
        auto const [of_a_chunk, outputs, inputs] = linear.shape;  // all chunks together have all tokens
        double const product = static_cast<double>(tokens * outputs) * static_cast<double>(inputs);
        int const gradients = options.wgrad == GradientPrecision::fp8 ? 2 : 1;
        if (takes_fp8(options, linear.shape)) fp8 += quantised_layers * product * (1 + gradients);
        all += static_cast<double>(layers) * product * 3;
    }
    return fp8 / all;
}

char const* to_string(Operand operand) {
    switch (operand) {
        case Operand::input:
            return "input";
        case Operand::weight:
            return "weight";
        case Operand::gradient:
            return "gradient";
    }
    return "";
}

std::optional<OperandReport> report_of(std::span<double const> counts, Operand operand) {
    double peak = 0, elements = 0, underflows = 0, top = 0;
    for (int64_t linear = 0; linear < kBlockLinears; ++linear) {
        auto const of = counts.subspan(
            static_cast<size_t>((linear * kOperands + static_cast<int64_t>(operand)) * kQuantCounts), kQuantCounts);
        if (of[kElements] == 0) continue;
        double const ratio = of[kSquares] == 0 ? 0 : of[kLargest] / std::sqrt(of[kSquares] / of[kElements]);
        peak = std::isnan(ratio) || ratio > peak ? ratio : peak;  // not finite: inf / inf
        elements += of[kElements], underflows += of[kUnderflows], top += of[kTopValues];
    }
    if (elements == 0) return std::nullopt;
    return OperandReport{.peak = peak, .underflow = underflows / elements, .top = top / elements};
}

}  // namespace perigee
