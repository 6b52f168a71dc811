// In which precision the products of the blocks are computed. The embedding, the classifier, norms and attention stay
// as they are, and so do master weights, gradients and moments.
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
/// As problems() of ModelOptions.
std::vector<std::string> problems(PrecisionOptions const& options, ModelOptions const& model);

/// y [T, O] = x [T, I] W^T with W [O, I], and its backward: as a rank computes them.
struct LinearShape {
    int64_t tokens, outputs, inputs;
};

/// Whether a product of a layer takes quantised operands in its forward and in the gradient of its input.
bool takes_fp8(PrecisionOptions const& options, LinearShape const& shape);
/// Whether this layer is not one of bf16_layers.
bool in_fp8_layers(PrecisionOptions const& options, int64_t layer, int64_t layers);

/// The products of a block.
struct NamedLinear {
    char const* name;
    LinearShape shape;
};
std::vector<NamedLinear> block_linears(ModelOptions const& model, int64_t tokens, int64_t mlp_tokens, int64_t tp);

}  // namespace perigee
