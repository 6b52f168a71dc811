#include <algorithm>

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
    if (modes.full == ContextMode::allgather || modes.sparse == ContextMode::allgather)
        gathered_ = std::make_shared<KeyGather>(ops, cp, shard,
                                                Shape{shard.pack_tokens(), problem.kv_heads, problem.head_dim}, arena);
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
    Shape const keys{shard_.pack_tokens(), problem_.kv_heads / parts(selection), problem_.head_dim};
    int64_t const numbers = ops_->routing_size(acts.attended.o_THK.shape, keys, problem_.cu_seqlens, *budget);
    if (numbers > 0) acts.routing_L = arena_->allocate("routing", DType::i32, {numbers});
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

int64_t ContextAttention::first_head(AttentionActivations const& acts, Selection const& selection) const {
    return problem_.first_head + (exchanges(selection) ? cp_->rank() * acts.attended.q_THK[1] : 0);
}

Attended ContextAttention::attended(AttentionActivations const& acts, Selection const& selection, int64_t begin,
                                    int64_t end) {
    auto const budget = budget_of(selection);
    if (!budget) return FullAttention{};
    return BlockSparse{.budget = *budget, .chosen_THS = acts.chosen_THS.rows(begin, end), .routing_L = acts.routing_L};
}

void ContextAttention::begin(AttentionActivations const& acts, Selection const& selection) const {
    if (gathers(selection)) gathered_->begin(acts.local.k_TGK, acts.local.v_TGK);
}

void ContextAttention::select(AttentionActivations const& acts, ConstView k_TGK, Selection const& selection) const {
    int64_t row = 0;
    for (TokenRange const range : queries(selection)) {
        int64_t const end = row + range.size();
        ops_->select_blocks({.chosen_THS = acts.chosen_THS.rows(row, end),
                             .q_THK = acts.attended.q_THK.rows(row, end),
                             .k_TGK = k_TGK,
                             .cu_seqlens = problem_.cu_seqlens,
                             .selection = selection,
                             .query_begin = range.begin,
                             .first_head = first_head(acts, selection)});
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
    auto const& [q_THK, own_k_TGK, own_v_TGK, o_THK] = acts.attended;
    bool const gathers_keys = gathers(selection);
    TensorView const k_TGK = gathers_keys ? gathered_->keys() : own_k_TGK;
    if (!is_full(selection)) select(acts, k_TGK, selection);
    TensorView const v_TGK = gathers_keys ? gathered_->values() : own_v_TGK;
    int64_t row = 0;
    for (TokenRange const range : queries(selection)) {
        int64_t const end = row + range.size();
        ops_->attention_forward({.o_THK = o_THK.rows(row, end),
                                 .lse_TH = acts.lse_TH.rows(row, end),
                                 .q_THK = q_THK.rows(row, end),
                                 .k_TGK = k_TGK,
                                 .v_TGK = v_TGK,
                                 .cu_seqlens = problem_.cu_seqlens,
                                 .scale = problem_.scale,
                                 .attended = attended(acts, selection, row, end),
                                 .query_begin = range.begin});
        row = end;
    }
    if (exchanges(selection)) HeadExchange(*ops_, *cp_, *arena_).to_tokens({{o_THK, acts.local.o_THK}});
}

void ContextAttention::restore(AttentionActivations const& acts, Selection const& selection) const {
    if (!exchanges(selection)) return;
    to_heads(acts);
    HeadExchange(*ops_, *cp_, *arena_).to_tokens({{acts.attended.o_THK, acts.local.o_THK}});
}

void ContextAttention::backward(Gradients const& grads, AttentionActivations const& acts,
                                Selection const& selection) const {
    Arena::Scope const scope(*arena_);
    HeadExchange const exchange(*ops_, *cp_, *arena_);
    auto [q_THK, k_TGK, v_TGK, o_THK] = acts.attended;
    auto [dq_THK, dk_TGK, dv_TGK, do_THK] = grads;
    if (exchanges(selection)) {
        auto const [dq, dk, dv, unused] = allocate_qkv(shard_.pack_tokens(), cp_->size());
        TensorView const d_o = allocate_heads("do of all tokens", shard_.pack_tokens(), dq[1]);
        exchange.to_heads({{grads.do_THK, d_o}});
        dq_THK = dq, dk_TGK = dk, dv_TGK = dv, do_THK = d_o;
    }
    if (gathers(selection)) {
        auto const all = [&](char const* name) {
            return allocate_heads(name, shard_.pack_tokens(), problem_.kv_heads, Use::communication);
        };
        dk_TGK = all("all dk"), dv_TGK = all("all dv");
        k_TGK = gathered_->keys(), v_TGK = gathered_->values();
    }
    int64_t row = 0;
    for (TokenRange const range : queries(selection)) {
        int64_t const end = row + range.size();
        ops_->attention_backward({.dq_THK = dq_THK.rows(row, end),
                                  .dk_TGK = dk_TGK,
                                  .dv_TGK = dv_TGK,
                                  .do_THK = do_THK.rows(row, end),
                                  .q_THK = q_THK.rows(row, end),
                                  .k_TGK = k_TGK,
                                  .v_TGK = v_TGK,
                                  .o_THK = o_THK.rows(row, end),
                                  .lse_TH = acts.lse_TH.rows(row, end),
                                  .cu_seqlens = problem_.cu_seqlens,
                                  .scale = problem_.scale,
                                  .attended = attended(acts, selection, row, end),
                                  .query_begin = range.begin,
                                  .add_to_dkv = row > 0});
        row = end;
    }
    if (exchanges(selection))
        exchange.to_tokens({{dq_THK, grads.dq_THK}, {dk_TGK, grads.dk_TGK}, {dv_TGK, grads.dv_TGK}});
    if (gathers(selection)) gathered_->begin_sums({dk_TGK, dv_TGK, grads.dk_TGK, grads.dv_TGK});
}

void ContextAttention::end_backward(Selection const& selection) const {
    if (gathers(selection)) gathered_->end_sums();
}

}  // namespace perigee
