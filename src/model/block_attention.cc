#include "model/block_attention.h"

#include "model/linear.h"

namespace perigee {

namespace {

/// What of queries, keys and values: all at once, or, where keys and values are gathered, they and the queries apart,
/// so that the gather goes on beside the queries' products.
enum class Part { all, keys, queries };

/// A part of the fused projection. In memory keys and values come first where they are apart.
struct QkvPart {
    Part part;
    TensorView x_TX;
    TensorView w_XD;  ///< weights, or their gradients
    TensorView bias_X, q_norm_K, k_norm_K;

    QkvPart(Pass const& pass, Part p, TensorView all_TX, BlockTensors const& of) : part(p) {
        int64_t const queries = pass.heads() * pass.options.head_size(), width = pass.qkv_width();
        int64_t const begin = p == Part::keys ? queries : 0, end = p == Part::queries ? queries : width;
        int64_t const first = p == Part::queries ? all_TX[0] * (width - queries) : 0;
        TensorView const flat = all_TX.reshape({all_TX.size()});
        x_TX = flat.rows(first, first + all_TX[0] * (end - begin)).reshape({all_TX[0], end - begin});
        w_XD = of.qkv_XD.rows(begin, end);
        if (!of.qkv_bias_X.empty()) bias_X = of.qkv_bias_X.rows(begin, end);
        if (p != Part::keys) q_norm_K = of.q_norm_K;
        if (p != Part::queries) k_norm_K = of.k_norm_K;
    }
    /// Heads of this part, none of others.
    TensorView queries(TensorView q_THK) const { return part == Part::keys ? none_of(q_THK) : q_THK; }
    TensorView keys(TensorView k_TGK) const { return part == Part::queries ? none_of(k_TGK) : k_TGK; }

  private:
    static TensorView none_of(TensorView x) { return {nullptr, x.dtype, {x[0], 0, x[2]}}; }
};

void project(Pass const& pass, BlockTensors const& weights, BlockActivations const& acts, Part which, ConstView x_TD) {
    QkvPart const part(pass, which, acts.qkv_TX.empty() ? pass.qkv_TX : acts.qkv_TX, weights);
    pass.ops.matmul({.c = part.x_TX, .a = x_TD, .b = part.w_XD, .transpose_b = true});
    pass.ops.qkv_forward({.q_THK = part.queries(acts.attention.local.q_THK),
                          .k_TGK = part.keys(acts.attention.local.k_TGK),
                          .v_TGK = part.keys(acts.attention.local.v_TGK),
                          .qkv_TX = part.x_TX,
                          .cos_TR = pass.cos_TR,
                          .sin_TR = pass.sin_TR,
                          .bias_X = part.bias_X,
                          .q_norm_K = part.q_norm_K,
                          .k_norm_K = part.k_norm_K,
                          .eps = pass.options.rms_norm_eps});
}

/// From the gradients of queries, keys and values to those of the projection, part by part.
class ProjectionBackward {
  public:
    ProjectionBackward(Pass const& pass, BlockTensors const& weights, BlockTensors const& grads,
                       BlockActivations const& acts, BlockGradients const& temporary)
        : pass_(pass),
          weights_(weights),
          grads_(grads),
          acts_(acts),
          temporary_(temporary),
          x_TD_(pass.stream.gather(acts.normed_PD)) {}

    /// dqkv, and dW += dqkv^T x.
    void weights(Part which) const {
        QkvPart const dpart(pass_, which, pass_.qkv_TX, grads_), part(pass_, which, pass_.qkv_TX, weights_);
        bool const kept = !acts_.qkv_TX.empty();
        pass_.ops.qkv_backward({.dqkv_TX = dpart.x_TX,
                                .dq_THK = dpart.queries(temporary_.dq_THK),
                                .dk_TGK = dpart.keys(temporary_.dk_TGK),
                                .dv_TGK = dpart.keys(temporary_.dv_TGK),
                                .qkv_TX = kept ? QkvPart(pass_, which, acts_.qkv_TX, weights_).x_TX : TensorView(),
                                .cos_TR = pass_.cos_TR,
                                .sin_TR = pass_.sin_TR,
                                .dbias_accumulated_X = dpart.bias_X,
                                .q_norm_K = part.q_norm_K,
                                .k_norm_K = part.k_norm_K,
                                .dq_norm_accumulated_K = dpart.q_norm_K,
                                .dk_norm_accumulated_K = dpart.k_norm_K,
                                .eps = pass_.options.rms_norm_eps});
        pass_.ops.matmul(
            {.c = dpart.w_XD, .a = dpart.x_TX, .b = x_TD_, .transpose_a = true, .accumulate = !pass_.fresh});
    }
    /// dx = dqkv W, or dx += it: partial sums over tp, where x of all tokens has been.
    void input(Part which, bool adds) const {
        QkvPart const part(pass_, which, pass_.qkv_TX, weights_);
        TensorView const dx_TD = pass_.stream.partial(temporary_.dnormed_PD);
        pass_.ops.matmul({.c = dx_TD, .a = part.x_TX, .b = part.w_XD, .accumulate = adds});
    }

  private:
    Pass const& pass_;
    BlockTensors const &weights_, &grads_;
    BlockActivations const& acts_;
    BlockGradients const& temporary_;
    ConstView x_TD_;
};

/// Overwrites dx with the gradient of the norm's output. Gradients of gathered keys and values are summed over the
/// ranks beside the queries' products.
void project_backward(Pass const& pass, ProjectionBackward const& of, Selection const& selection) {
    if (!pass.attention.gathers(selection)) {
        of.weights(Part::all);
        of.input(Part::all, /*adds=*/false);
        return;
    }
    bool const shares_memory = pass.mesh.shape().tp > 1;  // x of all tokens, and partial sums
    of.weights(Part::queries);
    if (!shares_memory) of.input(Part::queries, /*adds=*/false);
    pass.attention.end_backward(selection);
    of.weights(Part::keys);
    if (shares_memory) of.input(Part::queries, /*adds=*/false);
    of.input(Part::keys, /*adds=*/true);
}

/// Of the newest token of each text, over its cache.
void attend_cache(Pass const& pass, BlockActivations const& acts, Selection const& selection) {
    Decoding const& decoding = *acts.decoding;
    AttentionTensors const& x = acts.attention.local;
    pass.ops.kv_append({.pages = decoding.pages, .k_SGK = x.k_TGK, .v_SGK = x.v_TGK, .lengths_S = decoding.lengths_S});
    auto const budget = budget_of(selection);
    Attended attended = FullAttention{};
    if (budget) {
        attended = BlockSparse{.budget = *budget, .chosen_THS = acts.attention.chosen_THS};
        pass.ops.decode_select({.chosen_SHS = acts.attention.chosen_THS,
                                .q_SHK = x.q_THK,
                                .pages = decoding.pages,
                                .lengths_S = decoding.lengths_S,
                                .selection = selection,
                                .first_head = decoding.first_head});
    }
    pass.ops.decode_attend({.o_SHK = x.o_THK,
                            .q_SHK = x.q_THK,
                            .pages = decoding.pages,
                            .lengths_S = decoding.lengths_S,
                            .scale = decoding.scale,
                            .attended = attended});
}

}  // namespace

void attention_forward(Pass const& pass, BlockTensors const& weights, BlockActivations const& acts,
                       Selection const& selection, bool attends) {
    ConstView const x_TD = pass.stream.gather(acts.normed_PD);
    if (pass.attention.gathers(selection)) {
        project(pass, weights, acts, Part::keys, x_TD);
        pass.attention.begin(acts.attention, selection);
        project(pass, weights, acts, Part::queries, x_TD);
    } else {
        project(pass, weights, acts, Part::all, x_TD);
    }
    if (acts.decoding)
        attend_cache(pass, acts, selection);
    else if (attends)
        pass.attention.forward(acts.attention, selection);
    else
        pass.attention.restore(acts.attention, selection);
    join(pass, pass.branch_PD, matrix(acts.attention.local.o_THK), weights.o_DX);
}

void attention_backward(Pass const& pass, BlockTensors const& weights, BlockTensors const& grads,
                        BlockActivations const& acts, BlockGradients const& temporary, Selection const& selection) {
    Ops& ops = pass.ops;
    TensorView const dx_PD = temporary.dx_PD;
    join_backward(pass, matrix(temporary.do_THK), grads.o_DX, dx_PD, matrix(acts.attention.local.o_THK), weights.o_DX);
    pass.attention.backward({.dq_THK = temporary.dq_THK,
                             .dk_TGK = temporary.dk_TGK,
                             .dv_TGK = temporary.dv_TGK,
                             .do_THK = temporary.do_THK},
                            acts.attention, selection);
    project_backward(pass, {pass, weights, grads, acts, temporary}, selection);
    pass.stream.add_up(temporary.dnormed_PD);
    ops.rmsnorm_backward({.dx_TD = dx_PD,
                          .dw_accumulated_D = grads.input_norm_D,
                          .dy_TD = temporary.dnormed_PD,
                          .x_TD = acts.x_PD,
                          .w_D = weights.input_norm_D,
                          .rstd_T = acts.rstd_P,
                          .dresidual_TD = dx_PD});
}

}  // namespace perigee
