// The Llama family (Llama 2/3, Mistral, Qwen2, Qwen3 dense) with explicit forward and backward through Ops.
// Parameter names are Hugging Face's.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/classifier.h"
#include "model/kv_cache.h"
#include "model/memory_policy.h"
#include "model/options.h"
#include "model/precision.h"
#include "model/reach.h"
#include "ops/attention_inputs.h"
#include "ops/ops.h"
#include "parallel/mesh.h"
#include "parallel/param_spec.h"
#include "parallel/units.h"
#include "tensor/arena.h"
#include "tensor/batch.h"

namespace perigee {

/// Every parameter in forward order. q, k and v (and gate and up) of a layer are adjacent. A layer's adapters follow
/// its own parameters. With adapters, all other parameters are frozen.
std::vector<ParamSpec> llama_params(ModelOptions const& options);
/// Whether a parameter is a weight of the key convolution. If a model has none, they are set to zero, which changes
/// nothing.
bool is_key_conv(std::string const& name);
/// Every parameter except adapters and key convolutions, as in Hugging Face folders.
std::vector<ParamSpec> base_params(ModelOptions options);
/// Freezes parameters whose name matches a pattern; `*` matches any text. Throws Category::config if a pattern matches
/// nothing, if only some tensors of a fused matrix are frozen, or if nothing is left to train.
void freeze(std::vector<ParamSpec>& params, std::span<std::string const> patterns);
/// Whether a parameter belongs to an adapter.
bool is_adapter(std::string const& name);
// Their units: the embedding, the blocks, and the final norm with the classifier, where that is not the embedding.
inline constexpr int kEmbeddingUnit = 0;
inline int block_unit(int64_t layer) { return static_cast<int>(layer) + 1; }
inline int head_unit(ModelOptions const& options) { return block_unit(options.num_hidden_layers); }
inline int unit_count(ModelOptions const& options) { return head_unit(options) + 1; }

/// Fills parts of this rank's flat buffer with initial values: each a function of (seed, name, global index) alone.
void initialise(Ops& ops, ParamLayout const& layout, std::vector<FlatPart> const& parts, uint64_t seed);

/// Floating-point operations of the forward pass for documents with these borders: 2 per multiply-add, causal attention
/// over real document lengths, and for block-sparse layers the executed blocks and the gate. A training step costs 3
/// times that, the gate counted once.
struct ForwardFlops {
    double linear = 0;     ///< projections, adapters and classifier
    double attention = 0;  ///< scores and values
    double gate = 0;       ///< MoBA's block scores, forward only
    // FLOPs that the backward saves because of frozen parameters.
    double linear_left_out = 0;
    double attention_left_out = 0;
    double sparse_pairs = 0;  ///< query-key pairs that heads of block-sparse layers attend, one head of each layer
    double causal_pairs = 0;  ///< those that they would attend in full
    double training_linear() const { return 3 * linear - linear_left_out; }
    double training_attention() const { return 3 * attention - attention_left_out; }
    double training() const { return training_linear() + training_attention() + gate; }
    ForwardFlops& operator+=(ForwardFlops const& more);
};
/// What a backward skips because of frozen parameters.
struct Untrained {
    int64_t elements = 0;     ///< of frozen matrices, whose gradients are skipped
    int64_t layers = 0;       ///< leading layers without any backward
    bool classifier = false;  ///< one of the frozen matrices is the classifier
};
Untrained untrained(std::span<ParamSpec const> params, ModelOptions const& model);
ForwardFlops forward_flops(ModelOptions const& model, std::span<Selection const> selections,
                           std::span<int32_t const> cu_seqlens, Untrained const& untrained = {});
/// Takes the classifier of so many tokens, which carry no loss, out of a training step's count.
void leave_out_classifier(ForwardFlops& flops, ModelOptions const& model, int64_t tokens, Untrained const& untrained);

/// Where a backward pass adds its gradients.
struct GradientSink {
    GradientUnits& grads;  ///< of the operations' main_dtype()
    double scale = 1;
    // Key of the dropout random numbers, with the layer's name and the token's index in the global batch.
    uint64_t seed = 0;
    int64_t step = 0;
    TensorView counts = {};  ///< of quantised operands, f64 [layers * kLayerCounts], added to; empty: not wanted
    /// Reciprocal root mean squares of the stream's gradient as it enters each layer, of this rank's tokens: statistics
    /// [layers, T / (cp tp)]. Layers below the first trained one are left out. Empty: not wanted.
    TensorView stream_rstd_LP = {};
};

/// Over the tokens of a batch, each times its loss weight.
struct LossSums {
    double nll = 0;
    double correct = 0;  ///< 1 where no token of the vocabulary is likelier than the target
};

/// How to draw the next token of each text.
struct TokenDraws {
    std::span<DrawRule const> rules;  ///< one per text
    TensorView seen_SW = {};          ///< as in SampleTokens
    int64_t allowed = 0;
    /// With one text: queues the next step before this one's token has reached the host. The next call takes it, unless
    /// it asks for something else.
    bool ahead = false;
};

class Llama {
  public:
    /// `precision` applies to products in training; other passes compute in Ops::compute_dtype(). `layouts` must
    /// outlive the model.
    Llama(ModelOptions const& options, ModelLayouts const& layouts, Mesh const& mesh, Ops& ops,
          MemoryPolicy policy = {}, PrecisionOptions const& precision = {});
    ~Llama();

    // The ranks of a cp x tp group are given the same batch, and each cp rank computes its tokens of it: T must divide
    // by cp * tp (Category::config). Activations come from `arena` and are gone at return.

    /// Sums over this cp rank's tokens. `selections` has one entry per layer.
    LossSums loss(WeightUnits& weights, Batch const& batch, std::span<Selection const> selections, Arena& arena);

    /// Adds to `sink` what these tokens contribute to the gradient of its scale * sum(weight * nll) over the batch, and
    /// to `loss_accumulated`, f64 [1] on the device, what they contribute to that sum; does not wait for either. What
    /// tp does not cut still has to be added up over tp: add_up_uncut in parallel/sequence.h.
    void accumulate(WeightUnits& weights, GradientSink const& sink, TensorView loss_accumulated, Batch const& batch,
                    std::span<Selection const> selections, Arena& arena);
    /// The same; waits, and returns the sum over this cp rank's tokens.
    double loss_and_gradient(WeightUnits& weights, GradientSink const& sink, Batch const& batch,
                             std::span<Selection const> selections, Arena& arena);

    /// Logits (f32 in host memory, vocab_size values) that follow the last token of a batch of any length; the same on
    /// every rank.
    std::vector<float> next_logits(WeightUnits& weights, Batch const& batch, std::span<Selection const> selections,
                                   Arena& arena);

    /// Scores of the places whose loss weight is not 0, each for its target; the same on every rank of the cp x tp
    /// group. `allowed`: ids below it compete for `best` and the `top` likeliest ids, or 0 where neither is wanted. A
    /// batch of any length.
    TokenScores scores(WeightUnits& weights, Batch const& batch, std::span<Selection const> selections, int64_t allowed,
                       Arena& arena, int64_t top = 0);

    // With a cache: of a mesh without cp. The block size of all block-sparse layers is the cache's.

    /// Logits that follow text number `text` of the cache and `ids` after it, as above. The text then ends with these
    /// ids, so that the next call computes no token again. Category::internal where the cache has no room for them.
    std::vector<float> next_logits(WeightUnits& weights, std::span<int32_t const> ids,
                                   std::span<Selection const> selections, KvCache& cache, Arena& arena,
                                   int64_t text = 0);

    /// The same for one token ids[s] of each text s of the first S, by the operations of decoding: logits
    /// [S, vocab_size]. With ids[s] = -1 the text stays as it is, and its logits mean nothing.
    std::vector<float> decode(WeightUnits& weights, std::span<int32_t const> ids, std::span<Selection const> selections,
                              KvCache& cache, Arena& arena);

    /// Decodes and draws the next tokens on the device. -1 if a rule draws nothing. Needs a mesh without tp.
    std::vector<int32_t> decode(WeightUnits& weights, std::span<int32_t const> ids,
                                std::span<Selection const> selections, KvCache& cache, Arena& arena,
                                TokenDraws const& draws);

    /// Which blocks the block-sparse layers select for every token of the batch, by all heads; the same on every rank
    /// of the cp x tp group. Takes the memory of a training forward that keeps what the attention found.
    BlockChoices choices(WeightUnits& weights, Batch const& batch, std::span<Selection const> selections, Arena& arena);

    /// Calls visit(layer, its queries and keys) for every layer, with this tp rank's heads. Of a mesh without cp. Takes
    /// the memory of a training forward under recompute: mlp.
    void attention_inputs(WeightUnits& weights, Batch const& batch, std::span<Selection const> selections, Arena& arena,
                          std::function<void(int64_t, AttentionInputs const&)> const& visit);

    /// Logits of every token, [T, vocab_size] in host memory, for who compares or looks at them. Of a mesh without cp
    /// and tp.
    std::vector<float> logits(WeightUnits& weights, Batch const& batch, std::span<Selection const> selections,
                              Arena& arena);

    /// Memory of the host for activations, taken so far.
    int64_t offloaded_bytes() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace perigee
