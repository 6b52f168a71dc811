// Low-rank adapters (LoRA; Hu et al., arXiv 2106.09685) of the products of a block: y += scale B A dropout(x) beside
// y = W x. Layers that are one product (q, k and v; gate and up) have their A's in one matrix, and their B's are put
// into one whose other blocks are zero, so that every step is one product of Ops.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ops/ops.h"
#include "parallel/param_spec.h"
#include "tensor/arena.h"

namespace perigee {

struct ModelOptions;
struct Pass;

/// The adapters of a product's layers on this rank, or their gradients: n of rank r, at most one for each layer.
struct Adapters {
    struct Layer {
        TensorView b_OR;  ///< of its own rows
        int64_t begin;    ///< its first row of the product's
    };
    TensorView a_RI = {};  ///< [n r, I], in the order of `layers`; empty where there are none
    std::vector<Layer> layers = {};
    int64_t first = 0;         ///< number of the first one in the whole product
    int64_t columns = 0;       ///< inputs of the layer on all ranks
    int64_t first_column = 0;  ///< of them on this one
    uint64_t stream = 0;       ///< of the product's random numbers

    bool empty() const { return layers.empty(); }
    int64_t rank() const { return a_RI[0] / std::ssize(layers); }
    /// Of the layers that lie in rows [begin, end) of the product.
    Adapters rows(int64_t begin, int64_t end) const;
};

/// Where they are in the memory of a block's unit.
class AdapterPlaces {
  public:
    AdapterPlaces() = default;
    /// `names` of the product's layers, as "model.layers.0.mlp.down_proj".
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

/// A weight matrix with its adapters, or their gradients; views are empty where training leaves them as they are.
struct Linear {
    TensorView w_OI;
    Adapters adapters = {};
    Linear rows(int64_t begin, int64_t end) const {
        return {w_OI.empty() ? w_OI : w_OI.rows(begin, end), adapters.rows(begin, end)};
    }
};

/// Tokens that follow one another in the global batch of a step, as rows of an input.
struct TokenRun {
    int64_t rows;
    int64_t first;  ///< number of the first one in the global batch
};

/// Dropout in a training pass; none at a rate of 0.
struct DropoutPass {
    double rate = 0;
    uint64_t seed = 0;
    int64_t step = 0;
    std::vector<TokenRun> tokens = {};  ///< of the pass's T tokens in turn
};

/// What the adapters of a pass share: memory for one product at a time.
struct AdapterMemory {
    TensorView u = {};       ///< A x
    TensorView du = {};      ///< and its gradient: of every layer of a product, each in memory of its own
    TensorView b = {};       ///< the B's as one matrix, times the scale
    TensorView db = {};      ///< and its gradient
    TensorView layer = {};   ///< a layer's part of it
    TensorView inputs = {};  ///< x with dropout, or its gradient
};
AdapterMemory allocate_adapters(Arena& arena, Pass const& pass);
/// The rest of it, for a backward.
void allocate_adapter_gradients(Arena& arena, Pass const& pass, AdapterMemory& memory);

/// y += scale B A dropout(x).
void adapters_forward(Pass const& pass, TensorView y_TO, ConstView x_TI, Adapters const& adapters);

/// The gradients of A and B from x and the product's dy, and what adapters_input_backward() needs. Those that `grads`
/// has no place for are not computed.
void adapters_backward(Pass const& pass, Adapters const& grads, ConstView dy_TO, ConstView x_TI,
                       Adapters const& adapters);
/// dx += what the adapters add to it.
void adapters_input_backward(Pass const& pass, TensorView dx_TI, Adapters const& adapters);

}  // namespace perigee
