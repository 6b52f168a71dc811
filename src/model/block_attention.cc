#include "model/block_attention.h"

#include "model/block_decoding.h"
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
    Linear w;  ///< weights, or their gradients
    TensorView bias_X, q_norm_K, k_norm_K, k_conv_CW;

    QkvPart(Pass const& pass, Part p, TensorView all_TX, BlockTensors const& of) : part(p) {
        int64_t const queries = pass.heads() * pass.options.head_size(), width = pass.qkv_width();
        int64_t const begin = p == Part::keys ? queries : 0, end = p == Part::queries ? queries : width;
        int64_t const first = p == Part::queries ? all_TX[0] * (width - queries) : 0;
        TensorView const flat = all_TX.reshape({all_TX.size()});
        x_TX = flat.rows(first, first + all_TX[0] * (end - begin)).reshape({all_TX[0], end - begin});
        w = of.qkv.rows(begin, end);
        if (!of.qkv_bias_X.empty()) bias_X = of.qkv_bias_X.rows(begin, end);
        if (p != Part::keys) q_norm_K = of.q_norm_K;
        if (p != Part::queries) k_norm_K = of.k_norm_K, k_conv_CW = of.k_conv_CW;
    }
    /// Heads of this part, none of others.
    TensorView queries(TensorView q_THK) const { return part == Part::keys ? none_of(q_THK) : q_THK; }
    TensorView keys(TensorView k_TGK) const { return part == Part::queries ? none_of(k_TGK) : k_TGK; }

  private:
    static TensorView none_of(TensorView x) { return {nullptr, x.dtype, {x[0], 0, x[2]}}; }
};

/// Copies the key columns of the fused projection.
void take_keys(Pass const& pass, TensorView key_TC, ConstView qkv_TX) {
    pass.ops.copy_rows({.to = key_TC,
                        .to_stride = pass.key_width(),
                        .from = qkv_TX,
                        .from_begin = pass.query_width(),
                        .from_stride = pass.qkv_width(),
                        .rows = pass.tokens,
                        .width = pass.key_width()});
}

void project(Pass const& pass, BlockTensors const& weights, BlockActivations const& acts, Part which, ConstView x_TD) {
    QkvPart const part(pass, which, acts.qkv_TX.empty() ? pass.qkv_TX : acts.qkv_TX, weights);
    linear(pass, part.x_TX, x_TD, part.w);
    adapters_forward(pass, part.x_TX, x_TD, part.w.adapters);
    if (!part.k_conv_CW.empty()) {
        take_keys(pass, acts.key_TC, part.x_TX);
        pass.ops.key_conv_forward({.y_TX = part.x_TX,
                                   .x_TC = acts.key_TC,
                                   .w_CW = part.k_conv_CW,
                                   .positions_T = pass.positions_T,
                                   .first = pass.query_width()});
    }
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
        split_gradient(which);
        linear_backward(pass_, of_weights(which));
    }
    /// dx = dqkv W, or dx += dqkv W. Partial sums over tp, in the memory that x of all tokens used.
    void input(Part which, bool adds) const { linear_backward(pass_, of_input(which, adds)); }
    /// Computes dqkv, dW and dx of the whole projection.
    void all() const {
        split_gradient(Part::all);
        LinearBackward both = of_input(Part::all, /*adds=*/false);
        LinearBackward const weights = of_weights(Part::all);
        both.dw_OI = weights.dw_OI, both.x_TI = weights.x_TI, both.dadapters = weights.dadapters;
        linear_backward(pass_, both);
    }

  private:
    LinearBackward of_weights(Part which) const {
        QkvPart const dpart(pass_, which, pass_.qkv_TX, grads_), part(pass_, which, pass_.qkv_TX, weights_);
        return {.dw_OI = dpart.w.w_OI,
                .dy = {.plain_TO = dpart.x_TX},
                .x_TI = x_TD_,
                .dadapters = dpart.w.adapters,
                .adapters = part.w.adapters};
    }
    LinearBackward of_input(Part which, bool adds) const {
        QkvPart const part(pass_, which, pass_.qkv_TX, weights_);
        return {.dx_TI = pass_.stream.partial(temporary_.dnormed_PD),
                .adds = adds,
                .dy = {.plain_TO = part.x_TX},
                .w_OI = part.w.w_OI,
                .of = part.w.of,
                .adapters = part.w.adapters};
    }
    void split_gradient(Part which) const {
        QkvPart const dpart(pass_, which, pass_.qkv_TX, grads_), part(pass_, which, pass_.qkv_TX, weights_);
        bool const kept = !acts_.qkv_TX.empty();
        pass_.ops.qkv_backward({.dqkv_TX = dpart.x_TX,
                                .dq_THK = dpart.queries(temporary_.dq_THK),
                                .dk_TGK = dpart.keys(temporary_.dk_TGK),
                                .dv_TGK = dpart.keys(temporary_.dv_TGK),
                                .qkv_TX = kept ? QkvPart(pass_, which, acts_.qkv_TX, weights_).x_TX : TensorView(),
                                .cos_TR = pass_.cos_TR,
                                .sin_TR = pass_.sin_TR,
                                .dbias_accumulated_X = pass_.wanted(dpart.bias_X, part.bias_X),
                                .q_norm_K = part.q_norm_K,
                                .k_norm_K = part.k_norm_K,
                                .dq_norm_accumulated_K = pass_.wanted(dpart.q_norm_K, part.q_norm_K),
                                .dk_norm_accumulated_K = pass_.wanted(dpart.k_norm_K, part.k_norm_K),
                                .eps = pass_.options.rms_norm_eps});
        if (!part.k_conv_CW.empty()) {
            take_keys(pass_, pass_.dkey_TC, dpart.x_TX);
            pass_.ops.key_conv_backward({.dx_TX = dpart.x_TX,
                                         .dw_accumulated_CW = pass_.wanted(dpart.k_conv_CW, part.k_conv_CW),
                                         .dy_TC = pass_.dkey_TC,
                                         .x_TC = acts_.key_TC,
                                         .w_CW = part.k_conv_CW,
                                         .positions_T = pass_.positions_T,
                                         .first = pass_.query_width()});
        }
    }

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
        of.all();
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
void append_and_attend(Pass const& pass, BlockActivations const& acts, Selection const& selection) {
    Decoding const& decoding = *acts.decoding;
    AttentionTensors const& x = acts.attention.local;
    pass.ops.kv_append({.pages = decoding.pages, .k_SGK = x.k_TGK, .v_SGK = x.v_TGK, .lengths_S = decoding.lengths_S});
    attend_cache(pass.ops, decoding,
                 {.o_SHK = x.o_THK, .q_SHK = x.q_THK, .chosen_SHS = acts.attention.chosen_THS, .pools = false},
                 selection);
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
        append_and_attend(pass, acts, selection);
    else if (attends)
        pass.attention.forward(acts.attention, selection);
    else
        pass.attention.restore(acts.attention, selection);
    join(pass, pass.branch_PD, matrix(acts.attention.local.o_THK), weights.o);
}

void attention_backward(Pass const& pass, BlockTensors const& weights, BlockTensors const& grads,
                        BlockActivations const& acts, BlockGradients const& temporary, Selection const& selection) {
    Ops& ops = pass.ops;
    TensorView const dx_PD = temporary.dx_PD;
    join_backward(pass, matrix(temporary.do_THK), grads.o, dx_PD, matrix(acts.attention.local.o_THK), weights.o);
    pass.attention.backward({.dq_THK = temporary.dq_THK,
                             .dk_TGK = temporary.dk_TGK,
                             .dv_TGK = temporary.dv_TGK,
                             .do_THK = temporary.do_THK},
                            acts.attention, selection);
    project_backward(pass, {pass, weights, grads, acts, temporary}, selection);
    pass.stream.add_up(temporary.dnormed_PD);
    ops.rmsnorm_backward({.dx_TD = dx_PD,
                          .dw_accumulated_D = pass.wanted(grads.input_norm_D, weights.input_norm_D),
                          .dy_TD = temporary.dnormed_PD,
                          .x_TD = acts.x_PD,
                          .w_D = weights.input_norm_D,
                          .rstd_T = acts.rstd_P,
                          .dresidual_TD = dx_PD});
}

}  // namespace perigee
