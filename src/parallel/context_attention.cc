#include <algorithm>
#include <initializer_list>

#include "parallel/context.h"

namespace perigee {

namespace {

/// Collectives over heads, keys and values, with the packing around them. Scratch memory comes from `arena`.
struct Collectives {
    Ops& ops;
    Comm& cp;
    Arena& arena;

    struct Move {
        ConstView from;
        TensorView to;
    };

    /// From [Tl, X, K] of this rank's tokens to [T, X / cp, K] of this rank's heads, all tensors in one exchange.
    void to_heads(std::initializer_list<Move> moves) const {
        Arena::Scope const scope(arena);
        Buffers const x = buffers(moves);
        int64_t begin = 0;
        for (Move const& move : moves) {
            int64_t const width = move.from.size() / move.from[0] / cp.size();
            for (int64_t r = 0; r < cp.size(); ++r)
                ops.copy_rows({.to = x.send,
                               .to_begin = r * x.part + begin,
                               .to_stride = width,
                               .from = move.from,
                               .from_begin = r * width,
                               .from_stride = cp.size() * width,
                               .rows = move.from[0],
                               .width = width});
            begin += move.from[0] * width;
        }
        cp.all_to_all(ops.device().queue(), x.receive, x.send);
        begin = 0;
        for (Move const& move : moves) {
            int64_t const run = move.to.size() / cp.size();
            ops.copy_rows({.to = move.to,
                           .to_stride = run,
                           .from = x.receive,
                           .from_begin = begin,
                           .from_stride = x.part,
                           .rows = cp.size(),
                           .width = run});
            begin += run;
        }
    }

    /// The inverse of to_heads.
    void to_tokens(std::initializer_list<Move> moves) const {
        Arena::Scope const scope(arena);
        Buffers const x = buffers(moves);
        int64_t begin = 0;
        for (Move const& move : moves) {
            int64_t const run = move.from.size() / cp.size();
            ops.copy_rows({.to = x.send,
                           .to_begin = begin,
                           .to_stride = x.part,
                           .from = move.from,
                           .from_stride = run,
                           .rows = cp.size(),
                           .width = run});
            begin += run;
        }
        cp.all_to_all(ops.device().queue(), x.receive, x.send);
        begin = 0;
        for (Move const& move : moves) {
            int64_t const width = move.to.size() / move.to[0] / cp.size();
            for (int64_t r = 0; r < cp.size(); ++r)
                ops.copy_rows({.to = move.to,
                               .to_begin = r * width,
                               .to_stride = cp.size() * width,
                               .from = x.receive,
                               .from_begin = r * x.part + begin,
                               .from_stride = width,
                               .rows = move.to[0],
                               .width = width});
            begin += move.to[0] * width;
        }
    }

    /// Keys and values of the whole pack, in its order, from those of every rank's tokens.
    void gather(ContextShard const& shard, AttentionTensors const& local, TensorView k_TGK, TensorView v_TGK) const {
        Arena::Scope const scope(arena);
        int64_t const tokens = shard.tokens();
        TensorView const part = keys_and_values("own keys and values", k_TGK, 2 * tokens);
        TensorView const all = keys_and_values("all keys and values", k_TGK, 2 * shard.pack_tokens());
        ops.copy(part.rows(0, tokens), local.k_TGK);
        ops.copy(part.rows(tokens, 2 * tokens), local.v_TGK);
        cp.all_gather(ops.device().queue(), all, part);
        each_range(shard, [&](TokenRange range, int64_t row) {
            int64_t const end = row + range.size();
            ops.copy(k_TGK.rows(range.begin, range.end), all.rows(row, end));
            ops.copy(v_TGK.rows(range.begin, range.end), all.rows(row + tokens, end + tokens));
        });
    }

    /// Sums of all ranks' dk and dv of the whole pack, for this rank's tokens.
    void reduce(ContextShard const& shard, ConstView dk_TGK, ConstView dv_TGK, TensorView dk_local,
                TensorView dv_local) const {
        Arena::Scope const scope(arena);
        int64_t const tokens = shard.tokens();
        TensorView const part = keys_and_values("own dk and dv", dk_TGK, 2 * tokens);
        TensorView const all = keys_and_values("all dk and dv", dk_TGK, 2 * shard.pack_tokens());
        each_range(shard, [&](TokenRange range, int64_t row) {
            int64_t const end = row + range.size();
            ops.copy(all.rows(row, end), dk_TGK.rows(range.begin, range.end));
            ops.copy(all.rows(row + tokens, end + tokens), dv_TGK.rows(range.begin, range.end));
        });
        cp.reduce_scatter(ops.device().queue(), part, all);
        ops.copy(dk_local, part.rows(0, tokens));
        ops.copy(dv_local, part.rows(tokens, 2 * tokens));
    }

  private:
    struct Buffers {
        TensorView send, receive;
        int64_t part;  ///< elements for each rank
    };
    Buffers buffers(std::initializer_list<Move> moves) const {
        int64_t size = 0;
        for (Move const& move : moves) size += move.from.size();
        DType const dtype = moves.begin()->from.dtype;
        return {arena.allocate("sent heads", dtype, {size}, Use::communication),
                arena.allocate("received heads", dtype, {size}, Use::communication), size / cp.size()};
    }

    TensorView keys_and_values(char const* name, ConstView like, int64_t rows) const {
        return arena.allocate(name, like.dtype, {rows, like[1], like[2]}, Use::communication);
    }

    /// Every rank brings its keys, then its values. visit(range of the pack, row of its keys among all ranks' rows);
    /// the values are shard.tokens() rows further on.
    template <class Visit>
    static void each_range(ContextShard const& shard, Visit visit) {
        for (int rank = 0; rank < shard.ranks(); ++rank) {
            int64_t row = rank * 2 * shard.tokens();
            for (TokenRange const range : shard.ranges(rank)) {
                visit(range, row);
                row += range.size();
            }
        }
    }
};

}  // namespace

ContextAttention::ContextAttention(Ops& ops, Comm& cp, ContextMode mode, ContextShard const& shard,
                                   AttentionProblem const& problem, Arena& arena)
    : ops_(&ops), cp_(&cp), mode_(mode), shard_(shard), problem_(problem), arena_(&arena) {
    PERIGEE_CHECK(mode != ContextMode::automatic, "context parallelism without a mode");
    PERIGEE_CHECK(shard.ranks() == cp.size() && shard.rank() == cp.rank(),
                  "the shard of rank {} of {} on rank {} of {}", shard.rank(), shard.ranks(), cp.rank(), cp.size());
    PERIGEE_CHECK(problem.past == 0 || cp.size() == 1, "{} tokens before those of {} ranks", problem.past, cp.size());
    if (!exchanges()) return;
    PERIGEE_CHECK(shard.ranges().size() == 1, "ulysses with zigzag shards");
    PERIGEE_CHECK(problem.heads % cp.size() == 0 && problem.kv_heads % cp.size() == 0,
                  "{} heads and {} key/value heads for {} ranks", problem.heads, problem.kv_heads, cp.size());
    shared_ = allocate_qkv(shard_.tokens(), 1);
}

TensorView ContextAttention::allocate_heads(char const* name, int64_t tokens, int64_t heads) const {
    return arena_->allocate(name, ops_->compute_dtype(), {tokens, heads, problem_.head_dim});
}

AttentionTensors ContextAttention::allocate_qkv(int64_t tokens, int64_t parts) const {
    return {.q_THK = allocate_heads("q", tokens, problem_.heads / parts),
            .k_TGK = allocate_heads("k", tokens, problem_.kv_heads / parts),
            .v_TGK = allocate_heads("v", tokens, problem_.kv_heads / parts)};
}

AttentionActivations ContextAttention::allocate(Selection const& selection) const {
    AttentionActivations acts;
    allocate_inputs(acts);
    allocate_found(acts, selection);
    return acts;
}

void ContextAttention::allocate_inputs(AttentionActivations& acts) const {
    acts.local = exchanges() ? shared_ : allocate_qkv(shard_.tokens(), 1);
    acts.attended = exchanges() ? allocate_qkv(shard_.pack_tokens(), cp_->size()) : acts.local;
    if (exchanges()) acts.local.o_THK = allocate_heads("o", shard_.tokens(), problem_.heads);
}

void ContextAttention::allocate_found(AttentionActivations& acts, Selection const& selection) const {
    int64_t const parts = exchanges() ? cp_->size() : 1, heads = problem_.heads / parts;
    int64_t const tokens = exchanges() ? shard_.pack_tokens() : shard_.tokens();
    acts.attended.o_THK = allocate_heads("o of the attended queries", tokens, heads);
    if (!exchanges()) acts.local.o_THK = acts.attended.o_THK;
    acts.lse_TH = arena_->allocate("lse", ops_->main_dtype(), {tokens, heads});
    acts.chosen_THS = acts.routing_L = {};
    auto const budget = budget_of(selection);
    if (!budget) return;
    acts.chosen_THS = arena_->allocate("chosen", DType::i32, {tokens, heads, budget->slots()});
    // Every range has a routing table of its own, and what comes after a past has no backward.
    if (queries().size() > 1 || problem_.past > 0) return;
    Shape const keys{shard_.pack_tokens(), problem_.kv_heads / parts, problem_.head_dim};
    int64_t const numbers = ops_->routing_size(acts.attended.o_THK.shape, keys, problem_.cu_seqlens, *budget);
    if (numbers > 0) acts.routing_L = arena_->allocate("routing", DType::i32, {numbers});
}

std::vector<TokenRange> ContextAttention::queries() const {
    if (problem_.past > 0) return {{problem_.past, problem_.past + shard_.tokens()}};
    if (exchanges()) return {{0, shard_.pack_tokens()}};
    return shard_.ranges();
}

int64_t ContextAttention::first_head(AttentionActivations const& acts) const {
    return problem_.first_head + (exchanges() ? cp_->rank() * acts.attended.q_THK[1] : 0);
}

Attended ContextAttention::attended(AttentionActivations const& acts, Selection const& selection, int64_t begin,
                                    int64_t end) {
    auto const budget = budget_of(selection);
    if (!budget) return FullAttention{};
    return BlockSparse{.budget = *budget, .chosen_THS = acts.chosen_THS.rows(begin, end), .routing_L = acts.routing_L};
}

void ContextAttention::forward(AttentionActivations const& acts, Selection const& selection) const {
    Arena::Scope const scope(*arena_);
    Collectives const collectives{*ops_, *cp_, *arena_};
    auto [q_THK, k_TGK, v_TGK, o_THK] = acts.attended;
    if (exchanges())
        collectives.to_heads({{acts.local.q_THK, q_THK}, {acts.local.k_TGK, k_TGK}, {acts.local.v_TGK, v_TGK}});
    if (gathers()) {
        k_TGK = allocate_heads("all k", shard_.pack_tokens(), problem_.kv_heads);
        v_TGK = allocate_heads("all v", shard_.pack_tokens(), problem_.kv_heads);
        collectives.gather(shard_, acts.local, k_TGK, v_TGK);
    }
    int64_t row = 0;
    for (TokenRange const range : queries()) {
        int64_t const end = row + range.size();
        if (!is_full(selection))
            ops_->select_blocks({.chosen_THS = acts.chosen_THS.rows(row, end),
                                 .q_THK = q_THK.rows(row, end),
                                 .k_TGK = k_TGK,
                                 .cu_seqlens = problem_.cu_seqlens,
                                 .selection = selection,
                                 .query_begin = range.begin,
                                 .first_head = first_head(acts)});
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
    if (exchanges()) collectives.to_tokens({{o_THK, acts.local.o_THK}});
}

void ContextAttention::restore(AttentionActivations const& acts) const {
    if (!exchanges()) return;
    Collectives const collectives{*ops_, *cp_, *arena_};
    auto const& [q_THK, k_TGK, v_TGK, o_THK] = acts.attended;
    collectives.to_heads({{acts.local.q_THK, q_THK}, {acts.local.k_TGK, k_TGK}, {acts.local.v_TGK, v_TGK}});
    collectives.to_tokens({{o_THK, acts.local.o_THK}});
}

void ContextAttention::backward(Gradients const& grads, AttentionActivations const& acts,
                                Selection const& selection) const {
    Arena::Scope const scope(*arena_);
    Collectives const collectives{*ops_, *cp_, *arena_};
    auto [q_THK, k_TGK, v_TGK, o_THK] = acts.attended;
    auto [dq_THK, dk_TGK, dv_TGK, do_THK] = grads;
    if (exchanges()) {
        auto const [dq, dk, dv, unused] = allocate_qkv(shard_.pack_tokens(), cp_->size());
        TensorView const d_o = allocate_heads("do of all tokens", shard_.pack_tokens(), dq[1]);
        collectives.to_heads({{grads.do_THK, d_o}});
        dq_THK = dq, dk_TGK = dk, dv_TGK = dv, do_THK = d_o;
    }
    if (gathers()) {
        auto const all = [&](char const* name) {
            return allocate_heads(name, shard_.pack_tokens(), problem_.kv_heads);
        };
        k_TGK = all("all k"), v_TGK = all("all v"), dk_TGK = all("all dk"), dv_TGK = all("all dv");
        collectives.gather(shard_, acts.local, k_TGK, v_TGK);
    }
    int64_t row = 0;
    for (TokenRange const range : queries()) {
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
    if (exchanges()) collectives.to_tokens({{dq_THK, grads.dq_THK}, {dk_TGK, grads.dk_TGK}, {dv_TGK, grads.dv_TGK}});
    if (gathers()) collectives.reduce(shard_, dk_TGK, dv_TGK, grads.dk_TGK, grads.dv_TGK);
}

}  // namespace perigee
