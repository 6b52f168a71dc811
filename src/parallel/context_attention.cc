#include <algorithm>
#include <tuple>

#include "parallel/context.h"
#include "parallel/head_exchange.h"
#include "parallel/key_gather.h"

namespace perigee {

ContextAttention::ContextAttention(Ops& ops, Comm& cp, ContextModes modes, ContextShard const& shard,
                                   AttentionProblem const& problem, Arena& arena)
    : ops_(&ops), cp_(&cp), modes_(modes), shard_(shard), problem_(problem), arena_(&arena) {
    PERIGEE_CHECK(modes.full != ContextMode::automatic && modes.sparse != ContextMode::automatic,
                  "context parallelism without a mode");
    PERIGEE_CHECK(shard.ranks() == cp.size() && shard.rank() == cp.rank(),
                  "the shard of rank {} of {} on rank {} of {}", shard.rank(), shard.ranks(), cp.rank(), cp.size());
    PERIGEE_CHECK(problem.past == 0 || cp.size() == 1, "{} tokens before those of {} ranks", problem.past, cp.size());
    if (cp.size() == 1) return;
    if (modes.full == ContextMode::ulysses || modes.sparse == ContextMode::ulysses) {
        PERIGEE_CHECK(shard.ranges().size() == 1, "ulysses with zigzag shards");
        PERIGEE_CHECK(problem.heads % cp.size() == 0 && problem.kv_heads % cp.size() == 0,
                      "{} heads and {} key/value heads for {} ranks", problem.heads, problem.kv_heads, cp.size());
        shared_ = allocate_qkv(shard_.tokens(), 1);
    }
    if (modes.full != ContextMode::allgather && modes.sparse != ContextMode::allgather) return;
    PERIGEE_CHECK(problem.kv_heads % problem.head_groups == 0, "{} key/value heads in {} groups", problem.kv_heads,
                  problem.head_groups);
    int64_t const heads = problem.kv_heads / problem.head_groups;
    gathered_ = std::make_shared<KeyGather>(ops, cp, shard, Shape{shard.pack_tokens(), heads, problem.head_dim}, arena);
    if (problem.head_groups > 1)
        for (TensorView* const x : {&sent_.k_TGK, &sent_.v_TGK})
            *x = allocate_heads("heads of a group", shard.tokens(), heads, Use::communication);
}

TensorView ContextAttention::allocate_heads(char const* name, int64_t tokens, int64_t heads, Use use) const {
    return arena_->allocate(name, ops_->compute_dtype(), {tokens, heads, problem_.head_dim}, use);
}

AttentionTensors ContextAttention::allocate_qkv(int64_t tokens, int64_t parts) const {
    return {.q_THK = allocate_heads("q", tokens, problem_.heads / parts),
            .k_TGK = allocate_heads("k", tokens, problem_.kv_heads / parts),
            .v_TGK = allocate_heads("v", tokens, problem_.kv_heads / parts)};
}

int64_t ContextAttention::attended_tokens(Selection const& selection) const {
    return exchanges(selection) ? shard_.pack_tokens() : shard_.tokens();
}

AttentionActivations ContextAttention::allocate(Selection const& selection) const {
    AttentionActivations acts;
    allocate_inputs(acts, selection);
    allocate_found(acts, selection);
    arrange(acts, selection);
    return acts;
}

void ContextAttention::allocate_inputs(AttentionActivations& acts, Selection const& selection) const {
    TensorView const o_THK = acts.attended.o_THK;
    acts.attended = allocate_qkv(attended_tokens(selection), parts(selection));
    acts.attended.o_THK = o_THK;
    if (exchanges(selection)) acts.local.o_THK = allocate_heads("o", shard_.tokens(), problem_.heads);
}

void ContextAttention::allocate_found(AttentionActivations& acts, Selection const& selection) const {
    int64_t const tokens = attended_tokens(selection), heads = problem_.heads / parts(selection);
    acts.attended.o_THK = allocate_heads("o of the attended queries", tokens, heads);
    acts.lse_TH = arena_->allocate("lse", ops_->main_dtype(), {tokens, heads});
    acts.chosen_THS = acts.routing_L = {};
    auto const budget = budget_of(selection);
    if (!budget) return;
    acts.chosen_THS = arena_->allocate("chosen", DType::i32, {tokens, heads, budget->slots()});
    // Every range has a routing table of its own, and what comes after a past has no backward.
    if (queries(selection).size() > 1 || problem_.past > 0) return;
    int64_t const n = groups(selection);
    Shape const queries_of_group{tokens, heads / n, problem_.head_dim};
    Shape const keys{shard_.pack_tokens(), problem_.kv_heads / parts(selection) / n, problem_.head_dim};
    int64_t const numbers = ops_->routing_size(queries_of_group, keys, problem_.cu_seqlens, *budget);
    if (numbers > 0) acts.routing_L = arena_->allocate("routing", DType::i32, {n * numbers});
}

void ContextAttention::arrange(AttentionActivations& acts, Selection const& selection) const {
    int64_t const tokens = attended_tokens(selection);
    auto const in_heads = [&](TensorView x, int64_t heads) {
        return x.reshape({tokens, heads / parts(selection), problem_.head_dim});
    };
    AttentionTensors& x = acts.attended;
    x = {.q_THK = in_heads(x.q_THK, problem_.heads),
         .k_TGK = in_heads(x.k_TGK, problem_.kv_heads),
         .v_TGK = in_heads(x.v_TGK, problem_.kv_heads),
         .o_THK = in_heads(x.o_THK, problem_.heads)};
    acts.lse_TH = acts.lse_TH.reshape({tokens, x.q_THK[1]});
    if (is_full(selection)) acts.chosen_THS = acts.routing_L = {};
    if (!acts.chosen_THS.empty()) acts.chosen_THS = acts.chosen_THS.reshape({tokens, x.q_THK[1], acts.chosen_THS[2]});
    if (!exchanges(selection)) {
        acts.local = x;
        return;
    }
    TensorView const o_THK = acts.local.o_THK;
    acts.local = shared_;
    acts.local.o_THK = o_THK;
}

std::vector<TokenRange> ContextAttention::queries(Selection const& selection) const {
    if (problem_.past > 0) return {{problem_.past, problem_.past + shard_.tokens()}};
    if (exchanges(selection)) return {{0, shard_.pack_tokens()}};
    return shard_.ranges();
}

int64_t ContextAttention::first_head(AttentionActivations const& part, Selection const& selection,
                                     int64_t group) const {
    int64_t const before = exchanges(selection) ? cp_->rank() : group;
    return problem_.first_head + before * part.attended.q_THK[1];
}

Attended ContextAttention::attended(AttentionActivations const& acts, Selection const& selection, int64_t begin,
                                    int64_t end) {
    auto const budget = budget_of(selection);
    if (!budget) return FullAttention{};
    return BlockSparse{.budget = *budget, .chosen_THS = acts.chosen_THS.rows(begin, end), .routing_L = acts.routing_L};
}

void ContextAttention::begin(AttentionActivations const& acts, Selection const& selection) const {
    if (gathers(selection)) begin_group(acts, 0);
}

void ContextAttention::begin_group(AttentionActivations const& acts, int64_t group) const {
    if (problem_.head_groups == 1) return gathered_->begin(acts.local.k_TGK, acts.local.v_TGK);
    take_group(sent_.k_TGK, acts.local.k_TGK, group);
    take_group(sent_.v_TGK, acts.local.v_TGK, group);
    gathered_->begin(sent_.k_TGK, sent_.v_TGK, group);
}

TensorView ContextAttention::room_for_group(ConstView all, Use use) const {
    int64_t const heads = all[1] / problem_.head_groups;
    Shape const shape = all.shape.rank() == 2 ? Shape{all[0], heads} : Shape{all[0], heads, all[2]};
    return arena_->allocate("heads of a group", all.dtype, shape, use);
}

void ContextAttention::take_group(TensorView part, ConstView all, int64_t group) const {
    int64_t const width = part.size() / part[0];
    ops_->copy_rows({.to = part,
                     .to_stride = width,
                     .from = all,
                     .from_begin = group * width,
                     .from_stride = problem_.head_groups * width,
                     .rows = part[0],
                     .width = width});
}

void ContextAttention::put_group(TensorView all, ConstView part, int64_t group) const {
    int64_t const width = part.size() / part[0];
    ops_->copy_rows({.to = all,
                     .to_begin = group * width,
                     .to_stride = problem_.head_groups * width,
                     .from = part,
                     .from_stride = width,
                     .rows = part[0],
                     .width = width});
}

AttentionActivations ContextAttention::of_group(AttentionActivations const& acts, Selection const& selection,
                                                int64_t group, bool found) const {
    int64_t const n = groups(selection);
    if (n == 1) return acts;
    auto const of = [&](TensorView all, bool copies) {
        if (all.empty()) return TensorView();
        TensorView const part = room_for_group(all);
        if (copies) take_group(part, all, group);
        return part;
    };
    int64_t const numbers = acts.routing_L.size() / n;
    return {.local = {},
            .attended = {.q_THK = of(acts.attended.q_THK, true),
                         .k_TGK = {},
                         .v_TGK = {},
                         .o_THK = of(acts.attended.o_THK, found)},
            .lse_TH = of(acts.lse_TH, found),
            .chosen_THS = of(acts.chosen_THS, found),
            .routing_L = numbers > 0 ? acts.routing_L.rows(group * numbers, (group + 1) * numbers) : TensorView()};
}

void ContextAttention::select(AttentionActivations const& part, ConstView k_TGK, Selection const& selection,
                              int64_t group) const {
    int64_t row = 0;
    for (TokenRange const range : queries(selection)) {
        int64_t const end = row + range.size();
        ops_->select_blocks({.chosen_THS = part.chosen_THS.rows(row, end),
                             .q_THK = part.attended.q_THK.rows(row, end),
                             .k_TGK = k_TGK,
                             .cu_seqlens = problem_.cu_seqlens,
                             .selection = selection,
                             .query_begin = range.begin,
                             .first_head = first_head(part, selection, group)});
        row = end;
    }
}

void ContextAttention::attend(AttentionActivations const& part, ConstView k_TGK, ConstView v_TGK,
                              Selection const& selection) const {
    int64_t row = 0;
    for (TokenRange const range : queries(selection)) {
        int64_t const end = row + range.size();
        ops_->attention_forward({.o_THK = part.attended.o_THK.rows(row, end),
                                 .lse_TH = part.lse_TH.rows(row, end),
                                 .q_THK = part.attended.q_THK.rows(row, end),
                                 .k_TGK = k_TGK,
                                 .v_TGK = v_TGK,
                                 .cu_seqlens = problem_.cu_seqlens,
                                 .scale = problem_.scale,
                                 .attended = attended(part, selection, row, end),
                                 .query_begin = range.begin});
        row = end;
    }
}

void ContextAttention::attend_backward(Gradients const& grads, AttentionActivations const& part, ConstView k_TGK,
                                       ConstView v_TGK, Selection const& selection) const {
    int64_t row = 0;
    for (TokenRange const range : queries(selection)) {
        int64_t const end = row + range.size();
        ops_->attention_backward({.dq_THK = grads.dq_THK.rows(row, end),
                                  .dk_TGK = grads.dk_TGK,
                                  .dv_TGK = grads.dv_TGK,
                                  .do_THK = grads.do_THK.rows(row, end),
                                  .q_THK = part.attended.q_THK.rows(row, end),
                                  .k_TGK = k_TGK,
                                  .v_TGK = v_TGK,
                                  .o_THK = part.attended.o_THK.rows(row, end),
                                  .lse_TH = part.lse_TH.rows(row, end),
                                  .cu_seqlens = problem_.cu_seqlens,
                                  .scale = problem_.scale,
                                  .attended = attended(part, selection, row, end),
                                  .query_begin = range.begin,
                                  .add_to_dkv = row > 0});
        row = end;
    }
}

void ContextAttention::to_heads(AttentionActivations const& acts) const {
    AttentionTensors const &from = acts.local, &to = acts.attended;
    HeadExchange(*ops_, *cp_, *arena_)
        .to_heads({{from.q_THK, to.q_THK}, {from.k_TGK, to.k_TGK}, {from.v_TGK, to.v_TGK}});
}

void ContextAttention::forward(AttentionActivations const& acts, Selection const& selection) const {
    if (exchanges(selection)) to_heads(acts);
    bool const gathers_keys = gathers(selection);
    for (int64_t group = 0; group < groups(selection); ++group) {
        Arena::Scope const scope(*arena_);
        if (group > 0) begin_group(acts, group);
        AttentionActivations const part = of_group(acts, selection, group, /*found=*/false);
        TensorView const k_TGK = gathers_keys ? gathered_->keys() : acts.attended.k_TGK;
        if (!is_full(selection)) select(part, k_TGK, selection, group);
        TensorView const v_TGK = gathers_keys ? gathered_->values() : acts.attended.v_TGK;
        attend(part, k_TGK, v_TGK, selection);
        if (groups(selection) == 1) break;
        put_group(acts.attended.o_THK, part.attended.o_THK, group);
        put_group(acts.lse_TH, part.lse_TH, group);
        if (!is_full(selection)) put_group(acts.chosen_THS, part.chosen_THS, group);
    }
    if (exchanges(selection)) HeadExchange(*ops_, *cp_, *arena_).to_tokens({{acts.attended.o_THK, acts.local.o_THK}});
}

void ContextAttention::restore(AttentionActivations const& acts, Selection const& selection) const {
    if (!exchanges(selection)) return;
    to_heads(acts);
    HeadExchange(*ops_, *cp_, *arena_).to_tokens({{acts.attended.o_THK, acts.local.o_THK}});
}

void ContextAttention::backward(Gradients const& grads, AttentionActivations const& acts,
                                Selection const& selection) const {
    if (int64_t const n = groups(selection); n > 1) {
        bool const last_is_there = gathered_->group() == n - 1;  // as the forward leaves it
        for (int64_t i = 0; i < n; ++i) backward_of_group(grads, acts, selection, last_is_there ? n - 1 - i : i);
        return;
    }
    Arena::Scope const scope(*arena_);
    HeadExchange const exchange(*ops_, *cp_, *arena_);
    Gradients own = grads;
    TensorView k_TGK = acts.attended.k_TGK, v_TGK = acts.attended.v_TGK;
    if (exchanges(selection)) {
        auto const [dq, dk, dv, unused] = allocate_qkv(shard_.pack_tokens(), cp_->size());
        TensorView const d_o = allocate_heads("do of all tokens", shard_.pack_tokens(), dq[1]);
        exchange.to_heads({{grads.do_THK, d_o}});
        own = {.dq_THK = dq, .dk_TGK = dk, .dv_TGK = dv, .do_THK = d_o};
    }
    if (gathers(selection)) {
        std::tie(own.dk_TGK, own.dv_TGK) = gathered_gradients();
        k_TGK = gathered_->keys(), v_TGK = gathered_->values();
    }
    attend_backward(own, acts, k_TGK, v_TGK, selection);
    if (exchanges(selection))
        exchange.to_tokens({{own.dq_THK, grads.dq_THK}, {own.dk_TGK, grads.dk_TGK}, {own.dv_TGK, grads.dv_TGK}});
    if (gathers(selection)) gathered_->begin_sums({own.dk_TGK, own.dv_TGK, grads.dk_TGK, grads.dv_TGK});
}

std::pair<TensorView, TensorView> ContextAttention::gathered_gradients() const {
    auto const all = [&](char const* name) {
        return allocate_heads(name, shard_.pack_tokens(), problem_.kv_heads / problem_.head_groups, Use::communication);
    };
    TensorView const dk_TGK = all("all dk");
    return {dk_TGK, all("all dv")};
}

void ContextAttention::backward_of_group(Gradients const& grads, AttentionActivations const& acts,
                                         Selection const& selection, int64_t group) const {
    Arena::Scope const scope(*arena_);
    if (group != gathered_->group()) begin_group(acts, group);
    AttentionActivations const part = of_group(acts, selection, group, /*found=*/true);
    auto const [all_dk_TGK, all_dv_TGK] = gathered_gradients();
    TensorView const do_THK = room_for_group(grads.do_THK);
    take_group(do_THK, grads.do_THK, group);
    Gradients const own{
        .dq_THK = room_for_group(grads.dq_THK), .dk_TGK = all_dk_TGK, .dv_TGK = all_dv_TGK, .do_THK = do_THK};
    TensorView const k_TGK = gathered_->keys(), v_TGK = gathered_->values();
    attend_backward(own, part, k_TGK, v_TGK, selection);
    TensorView const dk_TGK = room_for_group(grads.dk_TGK, Use::communication),
                     dv_TGK = room_for_group(grads.dv_TGK, Use::communication);
    gathered_->begin_sums({all_dk_TGK, all_dv_TGK, dk_TGK, dv_TGK});
    put_group(grads.dq_THK, own.dq_THK, group);
    gathered_->end_sums();
    put_group(grads.dk_TGK, dk_TGK, group);
    put_group(grads.dv_TGK, dv_TGK, group);
}

void ContextAttention::end_backward(Selection const& selection) const {
    if (gathers(selection) && groups(selection) == 1) gathered_->end_sums();
}

}  // namespace perigee
