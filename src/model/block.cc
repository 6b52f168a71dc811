#include "model/block.h"

#include <algorithm>
#include <array>
#include <optional>

#include "model/block_attention.h"
#include "model/linear.h"

namespace perigee {

BlockPlaces::BlockPlaces(ModelLayouts const& layouts, ModelOptions const& options, int64_t layer) {
    auto const name = [&](char const* part) { return fmt::format("model.layers.{}.{}", layer, part); };
    auto const one = [&](char const* part) { return layouts.place(name(part)); };
    auto const product = [&](BlockLinear of, std::initializer_list<char const*> parts) {
        std::vector<std::string> names;
        for (char const* const part : parts) names.push_back(name(part));
        return Product{layouts.place(names.front() + ".weight", names.back() + ".weight"),
                       AdapterPlaces(layouts, names), of};
    };
    input_norm_ = one("input_layernorm.weight");
    qkv_ = product(BlockLinear::qkv, {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"});
    o_ = product(BlockLinear::o, {"self_attn.o_proj"});
    post_norm_ = one("post_attention_layernorm.weight");
    gate_up_ = product(BlockLinear::gate_up, {"mlp.gate_proj", "mlp.up_proj"});
    down_ = product(BlockLinear::down, {"mlp.down_proj"});
    if (options.qkv_bias) qkv_bias_ = layouts.place(name("self_attn.q_proj.bias"), name("self_attn.v_proj.bias"));
    if (options.key_conv > 0) k_conv_ = one("self_attn.k_conv.weight");
    if (!options.qk_norm) return;
    q_norm_ = one("self_attn.q_norm.weight");
    k_norm_ = one("self_attn.k_norm.weight");
}

BlockTensors BlockPlaces::in(UnitMemory const& unit) const {
    return {.input_norm_D = input_norm_.in(unit),
            .qkv = qkv_.in(unit),
            .qkv_bias_X = qkv_bias_.in(unit),
            .q_norm_K = q_norm_.in(unit),
            .k_norm_K = k_norm_.in(unit),
            .k_conv_CW = k_conv_.in(unit),
            .o = o_.in(unit),
            .post_norm_D = post_norm_.in(unit),
            .gate_up = gate_up_.in(unit),
            .down = down_.in(unit)};
}

namespace {

constexpr Recompute kLevels[] = {Recompute::none, Recompute::elementwise, Recompute::mlp, Recompute::attention,
                                 Recompute::block};

/// Allocates the tensors that `level` is the first to drop; for the first level, those that none drops.
void allocate_level(Arena& arena, Pass const& pass, Selection const& selection, Recompute level,
                    BlockActivations& acts) {
    ModelOptions const& o = pass.options;
    int64_t const T = pass.tokens, C = pass.mlp_tokens(), P = pass.part(), D = o.hidden_size, F = pass.intermediate();
    switch (level) {
        case Recompute::none:
            acts.x_PD = arena.allocate("x", pass.compute(), {P, D});
            break;
        case Recompute::elementwise:
            acts.normed_PD = arena.allocate("normed", pass.compute(), {P, D});
            acts.mid_normed_PD = arena.allocate("mid_normed", pass.compute(), {P, D});
            acts.y_CF = arena.allocate("y", pass.compute(), {C, F});
            break;
        case Recompute::mlp:
            acts.gate_up_C2F = arena.allocate("gate_up", pass.compute(), {C, 2 * F});
            break;
        case Recompute::attention:
            acts.rstd_P = arena.allocate("rstd", pass.statistics(), {P});
            if (o.key_conv > 0) acts.key_TC = arena.allocate("keys", pass.compute(), {T, pass.key_width()});
            if (o.qk_norm) acts.qkv_TX = arena.allocate("qkv", pass.compute(), {T, pass.qkv_width()});
            pass.attention.allocate_inputs(acts.attention, selection);
            acts.mid_PD = arena.allocate("mid", pass.compute(), {P, D});
            acts.mid_rstd_P = arena.allocate("mid_rstd", pass.statistics(), {P});
            break;
        case Recompute::block:
            pass.attention.allocate_found(acts.attention, selection);
            break;
    }
}

/// The tensors of a level; those that a block shares with all others in any case left out.
std::vector<TensorView*> tensors_of(BlockActivations& acts, Recompute level) {
    auto& [local, attended, lse_TH, chosen_THS, routing_L] = acts.attention;
    switch (level) {
        case Recompute::none:
            return {&acts.x_PD};
        case Recompute::elementwise:
            return {&acts.normed_PD, &acts.mid_normed_PD, &acts.y_CF};
        case Recompute::mlp:
            return {&acts.gate_up_C2F};
        case Recompute::attention:
            return {&acts.rstd_P,    &acts.qkv_TX,    &acts.key_TC, &local.o_THK,    &attended.q_THK,
                    &attended.k_TGK, &attended.v_TGK, &acts.mid_PD, &acts.mid_rstd_P};
        case Recompute::block:
            return {&attended.o_THK, &lse_TH, &chosen_THS, &routing_L};
    }
    return {};
}

/// A level's tensors from other activations.
void take(BlockActivations& acts, BlockActivations& from, Recompute level) {
    auto const to = tensors_of(acts, level), source = tensors_of(from, level);
    for (size_t i = 0; i < to.size(); ++i) *to[i] = *source[i];
}

/// Every tensor that a block keeps from its forward to its backward, once.
std::vector<TensorView> kept_of(BlockActivations& acts) {
    std::vector<TensorView> kept;
    for (Recompute level : kLevels) {
        if (level != Recompute::none && level <= acts.recompute) continue;
        for (TensorView const* const view : tensors_of(acts, level)) {
            auto const same = [view](TensorView const& other) { return other.data == view->data; };
            if (!view->empty() && std::ranges::none_of(kept, same)) kept.push_back(*view);
        }
    }
    return kept;
}

/// Memory that several blocks use in turn: levels of layers for which is_used(layer, level).
template <class IsUsed>
BlockActivations allocate_turns(Arena& arena, Pass const& pass, std::span<Selection const> selections, IsUsed is_used) {
    BlockActivations turns;
    for (Recompute level : kLevels) {
        // Inputs take the most memory where heads are exchanged, what is found where attention is block-sparse.
        auto const takes_most = [&](Selection const& selection) {
            return level == Recompute::attention ? pass.attention.exchanges(selection) : !is_full(selection);
        };
        std::optional<Selection> most;
        for (size_t layer = 0; layer < selections.size(); ++layer)
            if (is_used(layer, level) && (!most || !takes_most(*most))) most = selections[layer];
        if (most) allocate_level(arena, pass, *most, level, turns);
    }
    return turns;
}

}  // namespace

std::vector<BlockActivations> allocate_activations(Arena& arena, Pass const& pass,
                                                   std::span<Selection const> selections, MemoryPolicy const& policy) {
    PERIGEE_CHECK(selections.size() == policy.recompute.size(), "{} kinds of attention and {} levels of layers",
                  selections.size(), policy.recompute.size());
    auto const drops = [&](size_t layer, Recompute level) {
        return level != Recompute::none && level <= policy.recompute[layer];
    };
    std::vector<std::optional<size_t>> slot_of(selections.size());
    auto const taking_turns = layers_taking_turns(std::ssize(selections), policy.offload);
    for (size_t turn = 0; turn < taking_turns.size(); ++turn)
        slot_of[static_cast<size_t>(taking_turns[turn])] = turn % 2;
    auto const in_slot = [&](size_t slot) {
        return [&, slot](size_t layer, Recompute level) { return slot_of[layer] == slot && !drops(layer, level); };
    };
    BlockActivations shared = allocate_turns(arena, pass, selections, drops);
    std::array slots = {allocate_turns(arena, pass, selections, in_slot(0)),
                        allocate_turns(arena, pass, selections, in_slot(1))};
    std::vector<BlockActivations> blocks;
    for (size_t layer = 0; layer < selections.size(); ++layer) {
        BlockActivations& acts = blocks.emplace_back();
        acts.recompute = policy.recompute[layer];
        for (Recompute level : kLevels) {
            if (drops(layer, level))
                take(acts, shared, level);
            else if (slot_of[layer])
                take(acts, slots[*slot_of[layer]], level);
            else
                allocate_level(arena, pass, selections[layer], level, acts);
        }
        pass.attention.arrange(acts.attention, selections[layer]);
        if (slot_of[layer]) acts.kept = kept_of(acts);
    }
    return blocks;
}

BlockActivations allocate_activations(Arena& arena, Pass const& pass, std::span<Selection const> selections) {
    return allocate_turns(arena, pass, selections, [](size_t, Recompute) { return true; });
}

BlockGradients allocate_gradients(Arena& arena, Pass const& pass) {
    ModelOptions const& o = pass.options;
    int64_t const T = pass.tokens;
    Shape const query{T, pass.heads(), o.head_size()}, key{T, pass.kv_heads(), o.head_size()};
    return {.dx_PD = arena.allocate("dx", pass.compute(), {pass.part(), o.hidden_size}),
            .dnormed_PD = arena.allocate("dnormed", pass.compute(), {pass.part(), o.hidden_size}),
            .dy_CF = arena.allocate("dy", pass.compute(), {pass.mlp_tokens(), pass.intermediate()}),
            .do_THK = arena.allocate("do", pass.compute(), query),
            .dq_THK = arena.allocate("dq", pass.compute(), query),
            .dk_TGK = arena.allocate("dk", pass.compute(), key),
            .dv_TGK = arena.allocate("dv", pass.compute(), key)};
}

namespace {

/// A block's forward up to the MLP. Unless it `attends`, what the attention found is still there.
void up_to_mlp(Pass const& pass, BlockTensors const& weights, BlockActivations const& acts, ConstView previous_PD,
               Selection const& selection, bool attends) {
    Ops& ops = pass.ops;
    bool const first = previous_PD.empty();
    ops.rmsnorm_forward({.y_TD = acts.normed_PD,
                         .rstd_T = acts.rstd_P,
                         .x_TD = first ? ConstView(acts.x_PD) : previous_PD,
                         .w_D = weights.input_norm_D,
                         .eps = pass.options.rms_norm_eps,
                         .residual_TD = first ? ConstView() : ConstView(pass.branch_PD),
                         .sum_TD = first ? TensorView() : acts.x_PD});
    attention_forward(pass, weights, acts, selection, attends);
    ops.rmsnorm_forward({.y_TD = acts.mid_normed_PD,
                         .rstd_T = acts.mid_rstd_P,
                         .x_TD = acts.x_PD,
                         .w_D = weights.post_norm_D,
                         .eps = pass.options.rms_norm_eps,
                         .residual_TD = pass.branch_PD,
                         .sum_TD = acts.mid_PD});
}

/// Computes again what was dropped, up to the MLP; begins what attention's backward needs from other ranks.
void recompute(Pass const& pass, BlockTensors const& weights, BlockActivations const& acts,
               Selection const& selection) {
    Ops& ops = pass.ops;
    Recompute const dropped = acts.recompute;
    if (dropped >= Recompute::attention)
        return up_to_mlp(pass, weights, acts, {}, selection, /*attends=*/dropped == Recompute::block);
    pass.attention.begin(acts.attention, selection);
    if (dropped >= Recompute::elementwise) {
        auto const norm = [&](TensorView y_PD, TensorView rstd_P, ConstView x_PD, ConstView w_D) {
            ops.rmsnorm_forward(
                {.y_TD = y_PD, .rstd_T = rstd_P, .x_TD = x_PD, .w_D = w_D, .eps = pass.options.rms_norm_eps});
        };
        norm(acts.normed_PD, acts.rstd_P, acts.x_PD, weights.input_norm_D);
        norm(acts.mid_normed_PD, acts.mid_rstd_P, acts.mid_PD, weights.post_norm_D);
    }
}

/// A part of the tokens on their way through the MLP.
struct MlpChunk {
    int64_t begin, end;  ///< of the stream's rows
    TensorView mid_normed_PD;
    TensorView gate_up_C2F;
    TensorView y_CF;
};

/// visit(chunk), from the first to the last.
template <class Visit>
void each_mlp_chunk(Pass const& pass, BlockActivations const& acts, Visit visit) {
    for (int64_t begin = 0; begin < pass.part(); begin += pass.mlp_rows) {
        int64_t const end = std::min(begin + pass.mlp_rows, pass.part());
        int64_t const tokens = (end - begin) * pass.mesh.shape().tp;
        visit(MlpChunk{.begin = begin,
                       .end = end,
                       .mid_normed_PD = acts.mid_normed_PD.rows(begin, end),
                       .gate_up_C2F = acts.gate_up_C2F.rows(0, tokens),
                       .y_CF = acts.y_CF.rows(0, tokens)});
    }
}

/// Backward of SwiGLU. The gradient overwrites gate_up, or is written quantised.
OutputGradient swiglu_backward(Pass const& pass, TensorView gate_up_C2F, ConstView dy_CF, ConstView w_2FD) {
    OutputGradient dy = quantised_gradient(pass, {gate_up_C2F[0], gate_up_C2F[1], w_2FD[1]});
    TensorView const plain = dy.rows_TO.empty() ? gate_up_C2F : TensorView();
    if (dy.rows_TO.empty()) dy.plain_TO = plain;
    pass.ops.swiglu_backward({.dgate_up_T2F = plain,
                              .dy_TF = dy_CF,
                              .gate_up_T2F = gate_up_C2F,
                              .quantised_T2F = dy.rows_TO,
                              .transposed_2FT = dy.columns_OT});
    return dy;
}

/// Reads the gradient of the stream from temporary.dx_PD, writes that of the MLP's input to temporary.dnormed_PD.
/// First computes again what was dropped.
void mlp_backward(Pass const& whole, BlockTensors const& weights, BlockTensors const& grads,
                  BlockActivations const& acts, BlockGradients const& temporary) {
    each_mlp_chunk(whole, acts, [&](MlpChunk const& chunk) {
        Pass pass = whole;
        pass.fresh = whole.fresh && chunk.begin == 0;  // later chunks add to what the first has written
        pass.first_row = chunk.begin;
        if (acts.recompute >= Recompute::mlp) spread(pass, chunk.gate_up_C2F, chunk.mid_normed_PD, weights.gate_up);
        if (acts.recompute >= Recompute::elementwise) pass.ops.swiglu_forward(chunk.y_CF, chunk.gate_up_C2F);
        TensorView const dy_CF = temporary.dy_CF.rows(0, chunk.y_CF[0]);
        join_backward(pass, dy_CF, grads.down, temporary.dx_PD.rows(chunk.begin, chunk.end), chunk.y_CF, weights.down);
        spread_backward(pass, temporary.dnormed_PD.rows(chunk.begin, chunk.end), grads.gate_up,
                        swiglu_backward(pass, chunk.gate_up_C2F, dy_CF, weights.gate_up.w_OI), chunk.mid_normed_PD,
                        weights.gate_up);
    });
}

}  // namespace

void block_forward(Pass const& pass, BlockTensors const& weights, BlockActivations const& acts, ConstView previous_PD,
                   Selection const& selection) {
    up_to_mlp(pass, weights, acts, previous_PD, selection, /*attends=*/true);
    Pass of_chunk = pass;
    each_mlp_chunk(pass, acts, [&](MlpChunk const& chunk) {
        of_chunk.first_row = chunk.begin;
        spread(of_chunk, chunk.gate_up_C2F, chunk.mid_normed_PD, weights.gate_up);
        pass.ops.swiglu_forward(chunk.y_CF, chunk.gate_up_C2F);
        join(of_chunk, pass.branch_PD.rows(chunk.begin, chunk.end), chunk.y_CF, weights.down);
    });
}

void block_backward(Pass const& pass, BlockTensors const& weights, BlockTensors const& grads,
                    BlockActivations const& acts, BlockGradients const& temporary, Selection const& selection) {
    Ops& ops = pass.ops;
    TensorView const dx_PD = temporary.dx_PD;
    recompute(pass, weights, acts, selection);
    mlp_backward(pass, weights, grads, acts, temporary);
    ops.rmsnorm_backward({.dx_TD = dx_PD,
                          .dw_accumulated_D = pass.wanted(grads.post_norm_D, weights.post_norm_D),
                          .dy_TD = temporary.dnormed_PD,
                          .x_TD = acts.mid_PD,
                          .w_D = weights.post_norm_D,
                          .rstd_T = acts.mid_rstd_P,
                          .dresidual_TD = dx_PD});
    attention_backward(pass, weights, grads, acts, temporary, selection);
}

}  // namespace perigee
