// What the passes of Llama share, in training (llama.cc) and in inference (llama_inference.cc).
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "model/block.h"
#include "model/classifier.h"
#include "model/llama.h"
#include "model/offload.h"
#include "model/rope.h"
#include "parallel/context.h"

namespace perigee {

/// This cp rank's tokens of a batch: the batch itself where there is one rank.
class LocalBatch {
  public:
    LocalBatch(Batch const& pack, ContextShard const& shard) : shard_(shard), pack_(&pack) {
        if (shard.ranks() > 1) part_ = shard_batch(pack, shard);
    }
    ContextShard const& shard() const { return shard_; }
    Batch const& batch() const { return part_ ? *part_ : *pack_; }

  private:
    ContextShard shard_;
    Batch const* pack_;
    std::optional<Batch> part_;
};

/// A sum that starts at zero and stays on the device until it is read.
struct LossSum {
    LossSum(Ops& o, Arena& arena) : ops(o), view(arena.allocate("loss", DType::f64, {1})) { ops.fill_zero(view); }
    double read() const {
        double value = 0;
        ops.download(&value, view);
        return value;
    }
    Ops& ops;
    TensorView view;
};

/// A unit's weights for as long as this lives.
class Needed {
  public:
    /// Brace initialisation is ordered: need() must come before frozen().
    Needed(WeightUnits& weights, int unit, int next)
        : weights_(&weights), unit_(unit), memory_{weights.need(unit, next), weights.frozen()} {}
    /// Where the device has failed, who waits for it next is told so.
    ~Needed() {
        try {
            weights_->release(unit_);
        } catch (std::exception const&) {
        }
    }
    Needed(Needed const&) = delete;
    Needed& operator=(Needed const&) = delete;
    UnitMemory const& memory() const { return memory_; }

  private:
    WeightUnits* weights_;
    int unit_;
    UnitMemory memory_;
};

/// Memory of a decoding step on the device: ids, positions and lengths of its rows, and its logits.
struct DecodeMemory {
    TensorView numbers_R;  ///< int32 [3 rows]
    TensorView logits_SV;
};

/// Steps of one text that are queued before the token that they start from is known to the host. Two lie in memory at a
/// time: one whose logits are drawn from, and the next.
struct DecodeAhead {
    DecodeAhead(Ops& ops, int64_t vocabulary);

    Buffer memory;
    HostBuffer answer;
    std::array<DecodeMemory, 2> steps = {};
    TensorView drawn_S = {};
    size_t step = 0;  ///< the newest
    // What that step needs to be what a call asks for; key: empty if none is queued.
    std::vector<int64_t> key = {};
    int32_t id = 0;
    int64_t past = 0, cache_state = 0;
    int64_t pause = 0;  ///< tokens until a step is queued ahead again: where the host draws, it would be in vain
};

/// Appends everything of the rules that a captured step holds by value.
void add_rules(std::vector<int64_t>& key, std::span<Selection const> selections);

struct Llama::Impl {
    ModelOptions options;
    ModelLayouts layouts;
    Mesh const& mesh;
    Ops& ops;
    MemoryPolicy policy;  ///< with a level for every layer
    PrecisionOptions precision;
    std::unique_ptr<Offload> offload = {};
    Rope rope;
    ContextModes context_modes;
    // Where parameters are in the memory of their units.
    UnitPlace embedding, final_norm, lm_head;
    std::vector<BlockPlaces> blocks = {};
    int64_t first_trained = 0;  ///< first layer of the backward: nothing below it is trained
    std::unique_ptr<DecodeAhead> ahead = {};

    /// The tokens of one pass, on the device.
    struct Inputs {
        LocalBatch const& local;
        std::span<int32_t const> cu_seqlens;  ///< of all that is attended
        KvCache const* cache = nullptr;       ///< of the tokens before these
        int64_t text = 0;                     ///< there; what is computed are its next tokens
        int64_t added = 0;                    ///< those without padding
        TensorView k_TGK = {},
                   v_TGK = {};      ///< of the text up to its end, for a layer, where its pages are no neighbours
        TensorView lengths_S = {};  ///< or the newest of the first S texts: as Decoding says
        DropoutPass const* dropout = nullptr;  ///< in training only
        TensorView counts = {};                ///< as GradientSink's
        TensorView ids_T;
        TensorView positions_T;
        TensorView targets_T;
        TensorView weights_T;

        bool extends_text() const { return cache != nullptr && lengths_S.empty(); }
        bool decodes() const { return !lengths_S.empty(); }
    };

    /// The state of one pass after its forward.
    struct Forward {
        Pass pass;
        std::vector<BlockActivations> blocks = {};  ///< one per layer, or one for all of them
        TensorView x_PD = {};                       ///< the stream after the last block
        TensorView rstd_P = {};
        TensorView normed_PD = {};
    };

    struct Evaluation;
    struct ReadyClassifier;

    int head() const { return head_unit(options); }
    /// The unit that the classifier belongs to, and the classifier in its memory.
    int classifier_unit() const { return options.tie_word_embeddings ? kEmbeddingUnit : head(); }
    TensorView classifier(UnitMemory const& unit) const {
        return (options.tie_word_embeddings ? embedding : lm_head).in(unit);
    }
    int next_block(int64_t layer) const { return layer < options.num_hidden_layers ? block_unit(layer) : head(); }

    ClassifierInputs classifier_inputs(Needed const& of_classifier, Inputs const& inputs, Forward const& state) const {
        return {.x_TD = state.pass.stream.gather(state.normed_PD),
                .w_VD = classifier(of_classifier.memory()),
                .targets_T = inputs.targets_T,
                .weights_T = inputs.weights_T,
                .host_weights_T = inputs.local.batch().weights_T};
    }

    static TensorView layer_counts(TensorView counts, int64_t layer) {
        return counts.empty() ? counts : counts.rows(layer * kLayerCounts, (layer + 1) * kLayerCounts);
    }
    BlockTensors block(int64_t layer, UnitMemory const& unit) const {
        return blocks[static_cast<size_t>(layer)].in(unit);
    }
    bool trains(int unit) const { return layouts.trained.unit(unit).size() > 0; }

    /// Memory of a unit's gradients; empty if the unit has no trained parameter. If the gradients are fresh, zeroes
    /// those that no product overwrites: vectors, key convolutions, and an embedding that is not the classifier.
    TensorView begin_gradients(GradientUnits& grads, int unit) const {
        if (!trains(unit)) return {};
        TensorView const memory = grads.begin(unit);
        if (!grads.fresh()) return memory;
        int64_t const origin = layouts.trained.unit(unit).begin;
        for (ParamLayout::Entry const& entry : layouts.trained.entries_of(unit))
            if (entry.spec.shape.rank() == 1 || is_key_conv(entry.spec.name) ||
                (unit == kEmbeddingUnit && !options.tie_word_embeddings))
                ops.fill_zero(memory.rows(entry.offset - origin, entry.offset - origin + entry.local.size()));
        return memory;
    }

    void end_gradients(GradientUnits& grads, int unit) const {
        if (trains(unit)) grads.done(unit);
    }

    int64_t vocab_begin() const { return mesh.tp_rank() * (options.vocab_size / mesh.shape().tp); }

    LocalBatch share(Batch const& batch, std::span<Selection const> selections) const;
    AttentionProblem attention_problem(Inputs const& inputs) const;
    Inputs upload(LocalBatch const& local, Arena& arena) const;
    std::vector<float> host_floats(ConstView values) const;
    std::vector<float> logits_of_token(WeightUnits& weights, Forward const& state, ContextShard const& shard,
                                       int64_t token, Arena& arena) const;
    void allocate_for_precision(Pass& pass, Arena& arena) const;
    PrecisionOptions const* precision_of(Pass const& pass, int64_t layer) const;
    DropoutPass dropout_of(GradientSink const& sink, ContextShard const& shard, int64_t first_token) const;
    int64_t mlp_rows(int64_t tokens) const;
    Pass begin(Inputs const& inputs, std::span<Selection const> selections, Arena& arena) const;
    Forward forward(WeightUnits& weights, Inputs const& inputs, std::span<Selection const> selections, Arena& arena,
                    MemoryPolicy const* kept = nullptr) const;
    // What a layer does with the cache before and after its forward.
    void open_cache(BlockActivations& acts, Inputs const& inputs, int64_t layer) const;
    void close_cache(BlockActivations const& acts, Inputs const& inputs, int64_t layer,
                     Selection const& selection) const;
    void decode_whole(WeightUnits& weights, Inputs const& inputs, std::span<Selection const> selections,
                      TensorView logits_SV, Arena& arena) const;
    void decode_step(WeightUnits& weights, Inputs const& inputs, std::span<Selection const> selections,
                     TensorView logits_SV, Arena& arena) const;
    TensorView decode(WeightUnits& weights, std::span<int32_t const> ids, std::span<Selection const> selections,
                      KvCache& cache, Arena& arena) const;
    std::vector<int64_t> queue_step(WeightUnits& weights, DecodeMemory const& step, std::span<int32_t const> lengths,
                                    std::span<Selection const> selections, KvCache const& cache, Arena& arena) const;
    std::vector<int64_t> step_key(WeightUnits& weights, DecodeMemory const& step, int64_t rows, KvCache const& cache,
                                  std::span<Selection const> selections, Arena& arena) const;
    int32_t decode_ahead(WeightUnits& weights, int32_t id, std::span<Selection const> selections, KvCache& cache,
                         Arena& arena, TokenDraws const& draws);
    int32_t draw_on_host(ConstView logits_V, DrawRule const& rule, TensorView seen_W, int64_t allowed) const;
    std::vector<int32_t> take_places(std::span<int32_t const> ids, KvCache& cache, int64_t rows) const;
    std::vector<float> join_logits(TensorView part_SV, int64_t texts, Arena& arena) const;
    void normalise(Needed const& of_head, Forward const& state) const;
    void backward(WeightUnits& weights, GradientSink const& sink, Forward& state, BlockGradients const& temporary,
                  std::span<Selection const> selections) const;
    void train(WeightUnits& weights, GradientSink const& sink, TensorView loss_accumulated, Inputs const& inputs,
               std::span<Selection const> selections, Arena& arena) const;
    void add_choices(Pass const& pass, AttentionActivations const& acts, Selection const& selection,
                     BlockChoices& to) const;
};

}  // namespace perigee
