// Precision of the blocks' matrix products. The embedding, the classifier, norms, attention, master weights, gradients
// and moments are not affected.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

/// One of a block's products.
struct NamedLinear {
    char const* name;
    LinearShape shape;
};
std::vector<NamedLinear> block_linears(ModelOptions const& model, int64_t tokens, int64_t mlp_tokens, int64_t tp);

}  // namespace perigee
