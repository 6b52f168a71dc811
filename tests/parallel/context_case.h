// One attention problem shared by the context-parallel ranks of an in-process job, put together again afterwards.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <ostream>
#include <tuple>
#include <vector>

#include "ops/attention_case.h"
#include "parallel/context.h"
#include "support/counting_comm.h"
#include "support/thread_comm.h"

namespace perigee::testing {

struct ContextLayout {
    int ranks = 1;
    ContextMode mode = ContextMode::ulysses;
    bool zigzag = false;
    int64_t head_groups = 1;
};

inline void PrintTo(ContextLayout const& layout, std::ostream* out) {
    *out << fmt::format("{} ranks, {}{}, heads in {} groups", layout.ranks,
                        layout.mode == ContextMode::ulysses ? "ulysses" : "allgather", layout.zigzag ? ", zigzag" : "",
                        layout.head_groups);
}

/// Results of the whole pack; lse and chosen as in one call of the operations.
template <class Real>
struct ContextResult {
    typename HostAttention<Real>::Result y;
    std::vector<int32_t> chosen;      ///< [T, H, S]
    std::vector<int64_t> pairs;       ///< by rank: (query, key) pairs attended
    std::vector<CommCounts> forward;  ///< by rank
    std::vector<CommCounts> backward;
};

/// Every block of memory the arena hands out starts as NaN.
inline void poison(Arena& arena, int64_t bytes) {
    Arena::Scope const scope(arena);
    std::memset(arena.allocate("poison", DType::u8, {bytes}).data, 0xff, static_cast<size_t>(bytes));
}

/// One rank's share of the work on a pack.
template <class Real>
class ContextRank {
  public:
    ContextRank(ReferenceProblem const& p, Selection const& selection, ContextLayout const& layout, HostComm& comm)
        : p_(p),
          selection_(selection),
          budget_(budget_of(selection)),
          layout_(layout),
          comm_(comm),
          device_(make_host_device()),
          ops_(make_ops()),
          shard_(p.tokens(), layout.ranks, comm.rank(), layout.zigzag) {}

    /// Writes this rank's places of `all`.
    void run(ContextResult<Real>& all) {
        Arena arena(*device_);
        poison(arena, int64_t{8} << 20);
        auto const rank = static_cast<size_t>(comm_.rank());
        CommCounts counts;
        auto const comm = make_comm_over_host(std::make_unique<CountingComm>(comm_, counts));
        ContextAttention const context(*ops_, *comm, {layout_.mode, layout_.mode}, shard_,
                                       {.heads = p_.heads,
                                        .kv_heads = p_.kv_heads,
                                        .head_groups = layout_.head_groups,
                                        .head_dim = p_.head_dim,
                                        .scale = p_.scale,
                                        .cu_seqlens = p_.cu_seqlens},
                                       arena);
        AttentionActivations const acts = context.allocate(selection_);
        take(acts.local.q_THK, p_.q);
        take(acts.local.k_TGK, p_.k);
        take(acts.local.v_TGK, p_.v);
        context.begin(acts, selection_);
        context.forward(acts, selection_);
        std::swap(all.forward[rank], counts);
        give(all.y.o, acts.local.o_THK);
        collect(acts, all);

        // Another layer comes in between, which shares what layers share.
        AttentionActivations const next = context.allocate(selection_);
        for (TensorView x : {next.local.q_THK, next.local.k_TGK, next.local.v_TGK}) ops_->fill_zero(x);
        context.begin(next, selection_);
        context.forward(next, selection_);
        counts.clear();
        std::vector<Real> dq(static_cast<size_t>(acts.local.q_THK.size()), std::nan("")), d_o(dq.size());
        std::vector<Real> dk(static_cast<size_t>(acts.local.k_TGK.size()), std::nan("")), dv(dk);
        TensorView const do_THK(d_o.data(), acts.local.q_THK.shape);
        take(do_THK, p_.d_o);
        ContextAttention::Gradients const grads{.dq_THK = {dq.data(), acts.local.q_THK.shape},
                                                .dk_TGK = {dk.data(), acts.local.k_TGK.shape},
                                                .dv_TGK = {dv.data(), acts.local.k_TGK.shape},
                                                .do_THK = do_THK};
        context.begin(acts, selection_);
        context.backward(grads, acts, selection_);
        context.end_backward(selection_);
        std::swap(all.backward[rank], counts);
        give(all.y.dq, grads.dq_THK);
        give(all.y.dk, grads.dk_TGK);
        give(all.y.dv, grads.dv_TGK);

        // Where the forward came last, as under recomputation, nothing begins and the results are the same.
        auto const before = std::tuple(dq, dk, dv);
        for (auto* const x : {&dq, &dk, &dv}) std::ranges::fill(*x, std::nan(""));
        take(acts.local.q_THK, p_.q);
        take(acts.local.k_TGK, p_.k);
        take(acts.local.v_TGK, p_.v);
        context.begin(acts, selection_);
        context.forward(acts, selection_);
        context.backward(grads, acts, selection_);
        context.end_backward(selection_);
        EXPECT_EQ(std::tuple(dq, dk, dv), before);
    }

  private:
    std::unique_ptr<Ops> make_ops() {
        if constexpr (std::is_same_v<Real, float>)
            return make_host_ops(*device_, 1);
        else
            return make_host_ops_f64(*device_, 1);
    }

    void take(TensorView local, std::vector<double> const& all) const {
        int64_t const width = local.size() / local[0];
        Real* to = local.as<Real>();
        for (TokenRange const range : shard_.ranges())
            to = std::copy_n(all.begin() + range.begin * width, range.size() * width, to);
    }
    void give(std::vector<Real>& all, ConstView local) const {
        int64_t const width = local.size() / local[0];
        Real const* from = local.as<Real>();
        for (TokenRange const range : shard_.ranges()) {
            std::copy_n(from, range.size() * width, all.begin() + range.begin * width);
            from += range.size() * width;
        }
    }

    /// Log-sum-exps, choices and the number of attended keys of the queries this rank has worked on.
    void collect(AttentionActivations const& acts, ContextResult<Real>& all) const {
        bool const all_tokens = acts.attended.q_THK[0] == p_.tokens();
        auto const ranges = all_tokens ? std::vector<TokenRange>{{0, p_.tokens()}} : shard_.ranges();
        int64_t const heads = acts.attended.q_THK[1], S = budget_ ? budget_->slots() : 0;
        int64_t const first_head = heads < p_.heads ? comm_.rank() * heads : 0;
        int64_t row = 0;
        for (TokenRange const range : ranges)
            for (int64_t t = range.begin; t < range.end; ++t)
                for (int64_t h = 0; h < heads; ++h, ++row) {
                    int64_t const place = t * p_.heads + first_head + h;
                    all.y.lse[place] = acts.lse_TH.as<Real>()[row];
                    int64_t& pairs = all.pairs[static_cast<size_t>(comm_.rank())];
                    pairs += own_keys(t);
                    for (int64_t s = 0; s < S; ++s) {
                        int32_t const block = acts.chosen_THS.as<int32_t>()[row * S + s];
                        all.chosen[place * S + s] = block;
                        if (block >= 0) pairs += budget_->block_size;
                    }
                }
    }

    /// Keys of the query's own block, or of its document, up to itself.
    int64_t own_keys(int64_t t) const {
        int64_t const begin = *(std::upper_bound(p_.cu_seqlens.begin(), p_.cu_seqlens.end(), t) - 1);
        return budget_ ? (t - begin) % budget_->block_size + 1 : t - begin + 1;
    }

    ReferenceProblem const& p_;
    Selection selection_;
    std::optional<BlockBudget> budget_;
    ContextLayout layout_;
    HostComm& comm_;
    std::unique_ptr<Device> device_;
    std::unique_ptr<Ops> ops_;
    ContextShard shard_;
};

template <class Real>
ContextResult<Real> attend_in_context(ReferenceProblem const& p, Selection const& selection,
                                      ContextLayout const& layout) {
    auto const ranks = static_cast<size_t>(layout.ranks);
    ContextResult<Real> all;
    all.y = HostAttention<Real>::poisoned_result(p);
    auto const budget = budget_of(selection);
    all.chosen.assign(static_cast<size_t>(budget ? p.tokens() * p.heads * budget->slots() : 0), -777);
    all.pairs.resize(ranks);
    all.forward.resize(ranks);
    all.backward.resize(ranks);
    run_ranks(layout.ranks, [&](HostComm& comm) { ContextRank<Real>(p, selection, layout, comm).run(all); });
    return all;
}

}  // namespace perigee::testing
