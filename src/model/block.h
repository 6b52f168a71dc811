// One transformer block, forward and backward: norm, attention, norm, SwiGLU, on a residual stream. Of T tokens the
// stream holds P = T / tp on each tp rank (parallel/sequence.h); heads, F and the widths of products are this rank's. T
// is this cp rank's share of the batch: only the attention knows of the others.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "model/adapter.h"
#include "model/decoding.h"
#include "model/memory_policy.h"
#include "model/precision.h"
#include "ops/ops.h"
#include "parallel/context.h"
#include "parallel/mesh.h"
#include "parallel/param_spec.h"
#include "parallel/sequence.h"
#include "tensor/arena.h"

namespace perigee {

/// A block's parameters, or their gradients. Absent ones are empty views.
struct BlockTensors {
    TensorView input_norm_D;
    Linear qkv;  ///< fused q, k and v projections, [X, D]
    TensorView qkv_bias_X = {};
    TensorView q_norm_K = {};
    TensorView k_norm_K = {};
    TensorView k_conv_CW = {};
    Linear o;  ///< [D, H K]
    TensorView post_norm_D;
    Linear gate_up;  ///< [2 F, D]
    Linear down;     ///< [D, F]
};

/// Where a block's parameters are in the memory of its unit.
class BlockPlaces {
  public:
    BlockPlaces(ModelLayouts const& layouts, ModelOptions const& options, int64_t layer);
    BlockTensors in(UnitMemory const& unit) const;

  private:
    struct Product {
        UnitPlace weight;
        AdapterPlaces adapters;
        BlockLinear of = BlockLinear::qkv;
        Linear in(UnitMemory const& unit) const { return {weight.in(unit), adapters.in(unit), of}; }
    };
    UnitPlace input_norm_, qkv_bias_, q_norm_, k_norm_, k_conv_, post_norm_;
    Product qkv_, o_, gate_up_, down_;
};

/// Memory for a quantised matrix. The scales have room for either kind of tile.
struct QuantPlace {
    TensorView bytes;
    TensorView scales;
};
/// Memory for the quantised operands of one product and its backward.
struct QuantMemory {
    QuantPlace rows;     ///< x [T, I] or dy [T, O]
    QuantPlace columns;  ///< dy^T [O, T]
    QuantPlace input;    ///< x^T [I, T]
    QuantPlace weight;   ///< W [O, I] or W^T [I, O]
};

/// What one pass over a micro-batch shares between its blocks.
struct Pass {
    Ops& ops;
    ModelOptions const& options;
    Mesh const& mesh;
    SequenceParallel stream;
    ContextAttention attention;
    int64_t tokens;      ///< T
    int64_t mlp_rows;    ///< of part(), in a chunk of the MLP
    bool fresh = false;  ///< products overwrite the gradients of their weights
    TensorView cos_TR = {};
    TensorView sin_TR = {};
    TensorView branch_PD = {};  ///< output of the latest attention or SwiGLU, not yet added to the stream
    AdapterMemory adapters = {};
    DropoutPass dropout = {};
    int64_t first_row = 0;     ///< of part(), within the MLP chunk of the current product
    TensorView unwanted = {};  ///< scratch for gradients of frozen vectors that a backward operation always writes
    TensorView qkv_TX = {};    ///< fused projection if blocks do not keep their own; in the backward, its gradient
    PrecisionOptions const* precision = nullptr;  ///< precision of this block's products; null: all in compute()
    std::optional<QuantMemory> quantised = {};
    // Counts of this block's quantised operands, f64 [kLayerCounts]. Each is empty but in its own pass.
    TensorView forward_counts = {};
    TensorView backward_counts = {};
    TensorView dkey_TC = {};  ///< with key convolution: the gradient of its output
    ConstView positions_T = {};

    DType compute() const { return ops.compute_dtype(); }
    DType statistics() const { return ops.main_dtype(); }
    int64_t part() const { return tokens / mesh.shape().tp; }
    int64_t mlp_tokens() const { return mlp_rows * mesh.shape().tp; }  ///< C of a chunk of the MLP
    int64_t heads() const { return options.num_attention_heads / mesh.shape().tp; }
    int64_t kv_heads() const { return options.kv_heads() / mesh.shape().tp; }
    int64_t intermediate() const { return options.intermediate_size / mesh.shape().tp; }
    bool takes_fp8(LinearShape const& shape) const {
        return precision != nullptr && perigee::takes_fp8(*precision, shape);
    }
    /// Where an operation writes a gradient that no product makes: `grad`, or scratch if the parameter is frozen.
    TensorView wanted(TensorView grad, ConstView weight) const {
        if (!grad.empty() || weight.empty()) return grad;
        return unwanted.rows(0, weight.size()).reshape(weight.shape);
    }
    int64_t query_width() const { return heads() * options.head_size(); }
    int64_t key_width() const { return kv_heads() * options.head_size(); }
    int64_t qkv_width() const { return query_width() + 2 * key_width(); }
};

/// What the backward of a block reads.
struct BlockActivations {
    Recompute recompute = Recompute::none;  ///< what this level drops is shared with other blocks
    TensorView x_PD;                        ///< the stream at the block's entry
    TensorView rstd_P;
    TensorView normed_PD;
    TensorView qkv_TX;  ///< kept only for the norms of queries and keys
    TensorView key_TC;  ///< keys before the key convolution, if there is one
    AttentionActivations attention;
    TensorView mid_PD;  ///< the stream between attention and SwiGLU
    TensorView mid_rstd_P;
    TensorView mid_normed_PD;
    TensorView gate_up_C2F;  ///< the backward leaves its gradient here
    TensorView y_CF;
    std::vector<TensorView> kept = {};  ///< under offload: all of this that the block keeps from forward to backward
    std::optional<Decoding> decoding = {};  ///< tokens are the newest of S texts, and attend their caches
};
/// Activations of all blocks. What a block drops lies in memory that it shares with all others that drop it, and what
/// it keeps under offload in one of two slots (model/offload.h).
std::vector<BlockActivations> allocate_activations(Arena& arena, Pass const& pass,
                                                   std::span<Selection const> selections, MemoryPolicy const& policy);
/// Memory of one block at a time, for passes without a backward. It suits every one of these layers, for which
/// ContextAttention::arrange() makes its views.
BlockActivations allocate_activations(Arena& arena, Pass const& pass, std::span<Selection const> selections);

/// Reads the stream as `previous_PD` + pass.branch_PD and writes that sum to acts.x_PD; for the first block
/// `previous_PD` is empty and acts.x_PD holds the embedding. Leaves the SwiGLU's output in pass.branch_PD, so that the
/// stream after the block is acts.mid_PD + pass.branch_PD. The two may share memory with the previous block's.
void block_forward(Pass const& pass, BlockTensors const& weights, BlockActivations const& acts, ConstView previous_PD,
                   Selection const& selection);

/// Memory for a block's backward, shared by all blocks.
struct BlockGradients {
    TensorView dx_PD;  ///< of the stream: after a block, then before it
    TensorView dnormed_PD;
    TensorView dy_CF;
    TensorView do_THK;
    TensorView dq_THK;
    TensorView dk_TGK;
    TensorView dv_TGK;
};
BlockGradients allocate_gradients(Arena& arena, Pass const& pass);

/// `temporary.dx_PD` holds the gradient of the stream after the block and receives that of the stream before it. Adds
/// to `grads`. First computes again what the block had dropped.
void block_backward(Pass const& pass, BlockTensors const& weights, BlockTensors const& grads,
                    BlockActivations const& acts, BlockGradients const& temporary, Selection const& selection);

}  // namespace perigee
