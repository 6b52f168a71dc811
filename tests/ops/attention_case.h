// Attention problems for tests, run through the Ops interface and compared with the fp64 reference. All inputs are
// representable in fp32, so that rounding the inputs is no part of any error.
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "kernels/moba_gate/reference.h"
#include "ops/ops.h"
#include "support/random.h"

namespace perigee::testing {

inline constexpr double kTolerance32 = 1e-5;
inline constexpr double kTolerance64 = 1e-10;

/// Borders of documents shorter and longer than a tile, a block and a range of queries, and of empty ones.
inline std::vector<int32_t> const kRagged = {0, 1, 1, 34, 66, 195, 195, 640};

struct AttentionCase {
    std::vector<int32_t> cu_seqlens;
    int64_t heads = 4;
    int64_t kv_heads = 2;
    int64_t head_dim = 32;
    uint64_t seed = 1;
};

inline ReferenceProblem make_problem(AttentionCase const& c) {
    int64_t const T = c.cu_seqlens.back();
    auto const values = [&](int64_t heads, uint64_t stream) {
        auto const single = random_normal<float>(T * heads * c.head_dim, c.seed * 8 + stream);
        return std::vector<double>(single.begin(), single.end());
    };
    return {.heads = c.heads,
            .kv_heads = c.kv_heads,
            .head_dim = c.head_dim,
            .scale = 1 / std::sqrt(static_cast<double>(c.head_dim)),
            .cu_seqlens = c.cu_seqlens,
            .q = values(c.heads, 0),
            .k = values(c.kv_heads, 1),
            .v = values(c.kv_heads, 2),
            .d_o = values(c.heads, 3)};
}

/// Tokens [begin, end) of a pack.
struct Queries {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t count() const { return end - begin; }
};

/// Host operations in Real, their outputs poisoned before every call.
template <class Real>
class HostAttention {
  public:
    explicit HostAttention(int threads = 0) : device_(make_host_device()) {
        if constexpr (std::is_same_v<Real, float>)
            ops_ = make_host_ops(*device_, threads);
        else
            ops_ = make_host_ops_f64(*device_, threads);
    }

    std::vector<int32_t> select(ReferenceProblem const& p, Selection const& selection) {
        return select(p, selection, {0, p.tokens()});
    }
    /// The choices of the queries `of` alone; none for full attention.
    std::vector<int32_t> select(ReferenceProblem const& p, Selection const& selection, Queries of) {
        if (is_full(selection)) return {};
        std::vector<Real> const q(p.q.begin(), p.q.end()), k(p.k.begin(), p.k.end());
        int64_t const slots = budget_of(selection)->slots();
        std::vector<int32_t> chosen(static_cast<size_t>(of.count() * p.heads * slots), -777);
        ops_->select_blocks({.chosen_THS = {chosen.data(), {of.count(), p.heads, slots}},
                             .q_THK = all_queries(p, q).rows(of.begin, of.end),
                             .k_TGK = all_keys(p, k),
                             .cu_seqlens = p.cu_seqlens,
                             .selection = selection,
                             .query_begin = of.begin});
        return chosen;
    }

    struct Result {
        std::vector<Real> o, lse, dq, dk, dv;
        bool operator==(Result const&) const = default;
    };
    static Result poisoned_result(ReferenceProblem const& p) {
        auto const queries = std::ssize(p.q), keys = std::ssize(p.k);
        return {poisoned<Real>(queries), poisoned<Real>(p.tokens() * p.heads), poisoned<Real>(queries),
                poisoned<Real>(keys), poisoned<Real>(keys)};
    }
    /// Forward and backward.
    Result attend(ReferenceProblem const& p, Selection const& selection = FullAttention{}) {
        return attend(p, selection, select(p, selection));
    }
    Result attend(ReferenceProblem const& p, Selection const& selection, std::vector<int32_t> const& chosen) {
        Result y = poisoned_result(p);
        attend(p, selection, chosen, {0, p.tokens()}, false, y);
        return y;
    }

    /// The queries `of` alone: writes their rows of o, lse and dq, and writes or adds to all of dk and dv. `chosen` is
    /// that of the whole pack.
    void attend(ReferenceProblem const& p, Selection const& selection, std::vector<int32_t> const& chosen, Queries of,
                bool add_to_dkv, Result& y) {
        std::vector<Real> const q(p.q.begin(), p.q.end()), k(p.k.begin(), p.k.end()), v(p.v.begin(), p.v.end());
        std::vector<Real> const d_o(p.d_o.begin(), p.d_o.end());
        auto const queries = [&](auto& x) { return all_queries(p, x).rows(of.begin, of.end); };
        TensorView const lse_TH = TensorView(y.lse.data(), {p.tokens(), p.heads}).rows(of.begin, of.end);
        Attended attended = FullAttention{};
        if (auto const budget = budget_of(selection)) {
            ConstView const all(chosen.data(), {p.tokens(), p.heads, budget->slots()});
            attended = BlockSparse{.budget = *budget, .chosen_THS = all.rows(of.begin, of.end)};
        }
        ops_->attention_forward({.o_THK = queries(y.o),
                                 .lse_TH = lse_TH,
                                 .q_THK = queries(q),
                                 .k_TGK = all_keys(p, k),
                                 .v_TGK = all_keys(p, v),
                                 .cu_seqlens = p.cu_seqlens,
                                 .scale = p.scale,
                                 .attended = attended,
                                 .query_begin = of.begin});
        ops_->attention_backward({.dq_THK = queries(y.dq),
                                  .dk_TGK = all_keys(p, y.dk),
                                  .dv_TGK = all_keys(p, y.dv),
                                  .do_THK = queries(d_o),
                                  .q_THK = queries(q),
                                  .k_TGK = all_keys(p, k),
                                  .v_TGK = all_keys(p, v),
                                  .o_THK = queries(y.o),
                                  .lse_TH = lse_TH,
                                  .cu_seqlens = p.cu_seqlens,
                                  .scale = p.scale,
                                  .attended = attended,
                                  .query_begin = of.begin,
                                  .add_to_dkv = add_to_dkv});
    }

    Ops& ops() { return *ops_; }

  private:
    static auto all_queries(ReferenceProblem const& p, auto& x) { return view(x, {p.tokens(), p.heads, p.head_dim}); }
    static auto all_keys(ReferenceProblem const& p, auto& x) { return view(x, {p.tokens(), p.kv_heads, p.head_dim}); }
    static TensorView view(std::vector<Real>& x, Shape const& shape) { return {x.data(), shape}; }
    static ConstView view(std::vector<Real> const& x, Shape const& shape) { return {x.data(), shape}; }

    std::unique_ptr<Device> device_;
    std::unique_ptr<Ops> ops_;
};

/// The largest relative error of o, lse, dq, dk and dv: the one comparison every test uses, mutations included.
template <class Result, class Reference>
double worst_error(Result const& y, Reference const& reference) {
    return std::max({relative_error(y.o, reference.o), relative_error(y.lse, reference.lse),
                     relative_error(y.dq, reference.dq), relative_error(y.dk, reference.dk),
                     relative_error(y.dv, reference.dv)});
}

}  // namespace perigee::testing
