// Context parallelism: the cp ranks of a group share the tokens of every pack, and attention over the whole pack is
// made of local operations and a few collectives. Ulysses (Jacobs et al., arXiv 2309.14509) exchanges heads for tokens:
// each rank attends all tokens with H / cp heads. Allgather leaves the queries where they are and collects all keys and
// values. Neither ever sends queries to the owners of keys, where a block that everybody chooses would be a hot spot.
// MoBA runs unchanged inside both. Full and block-sparse layers of one model may use different modes: the shards of
// tokens are the same. In ulysses a layer keeps one tensor more, the attention's output for the local tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "comm/comm.h"
#include "ops/ops.h"
#include "parallel/mesh.h"
#include "tensor/arena.h"
#include "tensor/batch.h"

namespace perigee {

/// The mode of each kind of layer; never `automatic`.
struct ContextModes {
    ContextMode full = ContextMode::ulysses;
    ContextMode sparse = ContextMode::allgather;  ///< of block-sparse layers
    ContextMode of(Selection const& selection) const { return is_full(selection) ? full : sparse; }
    bool operator==(ContextModes const&) const = default;
};
/// For a model with this many key/value heads. Throws Category::config, naming both numbers, where ulysses is demanded
/// and the heads do not divide. `automatic` takes ulysses for full layers where they divide, and allgather otherwise:
/// contiguous shards are no equal parts of a causal triangle, but block-sparse queries have the same number of keys.
ContextModes resolve_context_modes(ContextMode wanted, MeshShape const& shape, int64_t kv_heads);
/// The same where the layers of a pass are all of one kind: its mode for both.
ContextModes modes_of_layers(ContextModes modes, std::span<Selection const> selections);

/// Tokens [begin, end) of a pack.
struct TokenRange {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t size() const { return end - begin; }
    bool operator==(TokenRange const&) const = default;
};

/// The tokens of a pack that each rank holds: one range of equal length per rank, or, as `zigzag`, chunks r and
/// 2 cp - 1 - r of 2 cp, which gives every rank the same share of a causal triangle.
class ContextShard {
  public:
    /// Throws Category::config, naming both numbers, where the tokens do not divide by cp (2 cp as zigzag).
    ContextShard(int64_t pack_tokens, int ranks, int rank, bool zigzag = false);

    int64_t pack_tokens() const { return pack_tokens_; }      ///< T
    int64_t tokens() const { return pack_tokens_ / ranks_; }  ///< Tl, of every rank
    int ranks() const { return ranks_; }
    int rank() const { return rank_; }
    /// In ascending order; a rank's local tokens are its ranges one after the other.
    std::vector<TokenRange> ranges(int rank) const;
    std::vector<TokenRange> ranges() const { return ranges(rank_); }

  private:
    int64_t pack_tokens_;
    int ranks_, rank_;
    bool zigzag_;
};

/// Ids, targets, weights and positions of the local tokens; the borders stay those of the pack.
Batch shard_batch(Batch const& pack, ContextShard const& shard);

/// What all attention layers of a pass share.
struct AttentionProblem {
    int64_t heads = 0;       ///< H of this tensor-parallel rank
    int64_t first_head = 0;  ///< number of its first query head among all of the model
    int64_t kv_heads = 0;    ///< G of this tensor-parallel rank
    /// Groups of heads that allgather works on one after the other; a divisor of G. Gathered keys and values, and their
    /// gradients, have G / head_groups heads.
    int64_t head_groups = 1;
    int64_t head_dim = 0;
    double scale = 0;
    std::span<int32_t const> cu_seqlens;  ///< of the pack
    /// Tokens of the pack before those that are computed, of one rank: their keys and values come with the activations,
    /// in `attended`, before those of `local`.
    int64_t past = 0;
};

/// Queries, keys, values and results of the same tokens.
struct AttentionTensors {
    TensorView q_THK;
    TensorView k_TGK;
    TensorView v_TGK;
    TensorView o_THK = {};
};

/// What a layer keeps from its forward to its backward.
struct AttentionActivations {
    AttentionTensors local;     ///< the rank's tokens, all heads: the caller writes q, k and v and reads o
    AttentionTensors attended;  ///< what the attention works on; with ulysses all tokens and H / cp heads, else `local`
    TensorView lse_TH;          ///< of the attended queries
    TensorView chosen_THS;      ///< of the attended queries, block-sparse layers only
    TensorView routing_L;       ///< likewise, where Ops has use for them and the queries are one range, by head group
};

class KeyGather;

/// Attention over the pack of one pass, for queries, keys and values of the rank's own tokens. On one rank these are
/// the plain operations on the caller's tensors, without a copy. Collectives: every rank of `cp` makes the same calls.
/// They run on a lane of their own; gathers beside what the caller queues between begin() and the call that needs them.
///
/// Elements a rank sends, per layer, for Tl local tokens (a share of 1 / cp of which stays on the rank):
///   ulysses    forward Tl (2H + 2G) K, backward the same; one exchange each way
///   allgather  forward 2 Tl G K to every rank; backward the same again, rather than keeping all keys and values,
///              and the reduction of 2 cp Tl G K
class ContextAttention {
  public:
    /// Takes from `arena`, for as long as the pass lasts, what layers share. With ulysses the local q, k and v are
    /// shared: after forward() they are free. The shard may be zigzag only with allgather and where all layers are
    /// full.
    ContextAttention(Ops& ops, Comm& cp, ContextModes modes, ContextShard const& shard, AttentionProblem const& problem,
                     Arena& arena);

    /// A layer's activations.
    AttentionActivations allocate(Selection const& selection) const;
    /// Their memory in two parts: what the caller can compute again, and what the attention found (attended.o, lse,
    /// chosen, routing).
    void allocate_inputs(AttentionActivations& acts, Selection const& selection) const;
    void allocate_found(AttentionActivations& acts, Selection const& selection) const;
    /// Views of such memory as the layer has them. It may have been allocated for another kind of layer: the inputs for
    /// one that exchanges() if any of its users does, the rest for a block-sparse one likewise.
    void arrange(AttentionActivations& acts, Selection const& selection) const;

    /// Whether such a layer exchanges heads for tokens, or gathers keys and values; on one rank neither.
    bool exchanges(Selection const& selection) const { return shares(selection, ContextMode::ulysses); }
    bool gathers(Selection const& selection) const { return shares(selection, ContextMode::allgather); }

    /// k and v of acts.local are written: their gathers begin. Needed before forward(), and before backward() unless
    /// forward() or restore() came last.
    void begin(AttentionActivations const& acts, Selection const& selection) const;
    /// Reads q, k and v of acts.local; writes the rest.
    void forward(AttentionActivations const& acts, Selection const& selection) const;
    /// The same where what the attention found is still there: attends nothing again.
    void restore(AttentionActivations const& acts, Selection const& selection) const;

    /// Ranges of the pack that the attended queries cover, in their order.
    std::vector<TokenRange> queries(Selection const& selection) const;

    /// Gradients of the local tokens: overwrites dq, dk and dv from do. What is queued before end_backward() finds dq
    /// alone.
    struct Gradients {
        TensorView dq_THK;
        TensorView dk_TGK;
        TensorView dv_TGK;
        ConstView do_THK;
    };
    void backward(Gradients const& grads, AttentionActivations const& acts, Selection const& selection) const;
    void end_backward(Selection const& selection) const;

  private:
    bool shares(Selection const& selection, ContextMode mode) const {
        return cp_->size() > 1 && modes_.of(selection) == mode;
    }
    int64_t attended_tokens(Selection const& selection) const;
    /// 1 / this of the heads are attended on this rank.
    int64_t parts(Selection const& selection) const { return exchanges(selection) ? cp_->size() : 1; }
    /// Heads are worked on in so many groups.
    int64_t groups(Selection const& selection) const { return gathers(selection) ? problem_.head_groups : 1; }
    /// Number of the first attended query head of a group among all of the model.
    int64_t first_head(AttentionActivations const& part, Selection const& selection, int64_t group) const;
    /// What rows [begin, end) of the attended queries attend.
    static Attended attended(AttentionActivations const& acts, Selection const& selection, int64_t begin, int64_t end);
    void select(AttentionActivations const& part, ConstView k_TGK, Selection const& selection, int64_t group) const;
    void attend(AttentionActivations const& part, ConstView k_TGK, ConstView v_TGK, Selection const& selection) const;
    void attend_backward(Gradients const& grads, AttentionActivations const& part, ConstView k_TGK, ConstView v_TGK,
                         Selection const& selection) const;
    void backward_of_group(Gradients const& grads, AttentionActivations const& acts, Selection const& selection,
                           int64_t group) const;
    void to_heads(AttentionActivations const& acts) const;

    void begin_group(AttentionActivations const& acts, int64_t group) const;
    /// Memory for a group's heads of [T, H, ...]; to there, and back.
    TensorView room_for_group(ConstView all, Use use = Use::activations) const;
    void take_group(TensorView part, ConstView all, int64_t group) const;
    void put_group(TensorView all, ConstView part, int64_t group) const;
    /// Activations of a group without its keys and values, and with what the attention `found` if it has; all of them
    /// where there is one group.
    AttentionActivations of_group(AttentionActivations const& acts, Selection const& selection, int64_t group,
                                  bool found) const;
    /// Memory for dk and dv of all tokens, of a group of heads.
    std::pair<TensorView, TensorView> gathered_gradients() const;

    /// q, k and v for this many tokens and 1 / `parts` of the heads.
    AttentionTensors allocate_qkv(int64_t tokens, int64_t parts) const;
    TensorView allocate_heads(char const* name, int64_t tokens, int64_t heads, Use use = Use::activations) const;

    Ops* ops_;
    Comm* cp_;
    ContextModes modes_;
    ContextShard shard_;
    AttentionProblem problem_;
    Arena* arena_;
    AttentionTensors shared_ = {};         ///< ulysses: q, k and v of the local tokens
    std::shared_ptr<KeyGather> gathered_;  ///< allgather: keys and values of the layer at work
    AttentionTensors sent_ = {};           ///< those of the group at work, of the local tokens
};

}  // namespace perigee
