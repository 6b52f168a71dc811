// Low-rank adapters (LoRA; Hu et al., arXiv 2106.09685) of a block's products: y = W x + scale B A dropout(x). Layers
// that share a product (q, k and v; gate and up) store their A matrices as one matrix. Their B matrices form one
// block-diagonal matrix, so each step is a single product.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/precision.h"
#include "ops/ops.h"
#include "parallel/param_spec.h"
#include "tensor/arena.h"

namespace perigee {

struct ModelOptions;
struct Pass;

/// Adapters of the layers in one product on this rank, or their gradients: n adapters of rank r, at most one per layer.
struct Adapters {
    struct Layer {
        TensorView b_OR;  ///< its rows on this rank
        int64_t begin;    ///< its first row in the product
    };
    TensorView a_RI = {};  ///< [n r, I], in the order of `layers`; empty if n is 0
    std::vector<Layer> layers = {};
    int64_t first = 0;         ///< index of the first adapter within the whole product
    int64_t columns = 0;       ///< input columns of the layer, over all ranks
    int64_t first_column = 0;  ///< the first of them on this rank
    uint64_t stream = 0;       ///< random stream of the product, for dropout

    bool empty() const { return layers.empty(); }
    int64_t rank() const { return a_RI[0] / std::ssize(layers); }
    /// The adapters whose layers lie in rows [begin, end) of the product.
    Adapters rows(int64_t begin, int64_t end) const;
};

/// Where a product's adapters are in the memory of a block's unit.
class AdapterPlaces {
  public:
    AdapterPlaces() = default;
    /// `names`: the product's layers, e.g. "model.layers.0.mlp.down_proj".
    AdapterPlaces(ModelLayouts const& layouts, std::span<std::string const> names);
    Adapters in(UnitMemory const& unit) const;

  private:
    struct Layer {
        UnitPlace b;
        int64_t begin;
    };
    UnitPlace a_;
    std::vector<Layer> layers_;
    int64_t columns_ = 0, first_column_ = 0;
    uint64_t stream_ = 0;
};

/// A weight matrix with its adapters, or their gradients. Gradient views are empty for frozen parameters.
struct Linear {
    TensorView w_OI;
    Adapters adapters = {};
    BlockLinear of = BlockLinear::qkv;  ///< the product it belongs to
    Linear rows(int64_t begin, int64_t end) const {
        return {w_OI.empty() ? w_OI : w_OI.rows(begin, end), adapters.rows(begin, end), of};
    }
};

/// Rows of an input that are consecutive tokens of a step's global batch.
struct TokenRun {
    int64_t rows;
    int64_t first;  ///< index of the first token in the global batch
};

/// Dropout of a training pass; rate 0 means none.
struct DropoutPass {
    double rate = 0;
    uint64_t seed = 0;
    int64_t step = 0;
    std::vector<TokenRun> tokens = {};  ///< covers the pass's T tokens, in order
};

/// Buffers that all adapters of a pass share, large enough for one product.
struct AdapterMemory {
    TensorView u = {};       ///< A x
    TensorView du = {};      ///< its gradient; each layer of a product has its own part
    TensorView b = {};       ///< the joined B matrix, times the scale
    TensorView db = {};      ///< its gradient
    TensorView layer = {};   ///< one layer's part of it
    TensorView inputs = {};  ///< dropout(x), or its gradient
};
AdapterMemory allocate_adapters(Arena& arena, Pass const& pass);
/// Also allocates the buffers that a backward needs.
void allocate_adapter_gradients(Arena& arena, Pass const& pass, AdapterMemory& memory);

/// y += scale B A dropout(x).
void adapters_forward(Pass const& pass, TensorView y_TO, ConstView x_TI, Adapters const& adapters);

/// Computes the gradients of A and B from x and dy, and leaves what adapters_input_backward() needs. Gradients that
/// `grads` has no view for are skipped.
void adapters_backward(Pass const& pass, Adapters const& grads, ConstView dy_TO, ConstView x_TI,
                       Adapters const& adapters);
/// Adds the adapters' contribution to dx.
void adapters_input_backward(Pass const& pass, TensorView dx_TI, Adapters const& adapters);

}  // namespace perigee
