// Precision of the blocks' matrix products. The embedding, the classifier, norms, attention, master weights, gradients
// and moments are not affected.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fp8.h"
#include "base/schema.h"
#include "model/options.h"

namespace perigee {

enum class LinearPrecision { bf16, fp8_block, automatic };
enum class GradientPrecision { fp8, bf16 };

/// Layers whose products stay in bf16.
struct EdgeLayers {
    int64_t first = 0;
    int64_t last = 0;
};
void describe(Schema& schema, EdgeLayers& options);

struct PrecisionOptions {
    LinearPrecision linear = LinearPrecision::bf16;
    GradientPrecision wgrad = GradientPrecision::fp8;
    EdgeLayers bf16_layers = {};
    int64_t report_every = 0;  ///< steps; 0: never
};
void describe(Schema& schema, PrecisionOptions& options);
/// As problems() for ModelOptions.
std::vector<std::string> problems(PrecisionOptions const& options, ModelOptions const& model);

/// Extents of y [T, O] = x [T, I] W^T, with W [O, I], on one rank.
struct LinearShape {
    int64_t tokens, outputs, inputs;
};

/// Whether the forward and input-gradient products of a layer use quantised operands.
bool takes_fp8(PrecisionOptions const& options, LinearShape const& shape);
/// Whether a layer is outside bf16_layers.
bool in_fp8_layers(PrecisionOptions const& options, int64_t layer, int64_t layers);

/// A block's products, in the order of block_linears().
enum class BlockLinear : uint8_t { qkv, o, gate_up, down };
struct NamedLinear {
    char const* name;
    LinearShape shape;
};
inline constexpr int64_t kBlockLinears = 4;
std::vector<NamedLinear> block_linears(ModelOptions const& model, int64_t tokens, int64_t mlp_tokens, int64_t tp);
/// FP8's share of the FLOPs of all products of a training step, the classifier's included, 0 to 1. Arguments as of
/// block_linears().
double fp8_share(PrecisionOptions const& options, ModelOptions const& model, int64_t tokens, int64_t mlp_tokens,
                 int64_t tp);

/// What a layer's products are made of, of which a report has numbers. The gradient of SwiGLU's input is not among
/// them where SwiGLU's backward quantises it (docs/fp8.md).
enum class Operand : uint8_t { input, weight, gradient };
inline constexpr int64_t kOperands = 3;
char const* to_string(Operand operand);

/// Counts of a layer's operands (base/fp8.h), f64 [kBlockLinears, kOperands, kQuantCounts].
inline constexpr int64_t kLayerCounts = kBlockLinears * kOperands * kQuantCounts;

/// Of one operand of a layer, over its products.
struct OperandReport {
    double peak = 0;       ///< largest magnitude / root mean square, of the product where that is largest
    double underflow = 0;  ///< share of the elements that are not zero and became zero
    double top = 0;        ///< share of the elements at the largest E4M3 value
};
/// From kLayerCounts numbers of a layer. Empty if the layer has no such operand.
std::optional<OperandReport> report_of(std::span<double const> counts, Operand operand);

}  // namespace perigee
