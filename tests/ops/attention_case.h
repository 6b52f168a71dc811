// Attention problems for tests, run through the Ops interface and compared with the fp64 reference. All inputs are
// representable in fp32, so that rounding the inputs is no part of any error.
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "kernels/moba/moba_reference.h"
#include "ops/ops.h"
#include "support/random.h"

namespace perigee::testing {

inline constexpr double kTolerance32 = 1e-5;
inline constexpr double kTolerance64 = 1e-10;

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

    std::vector<int32_t> select(ReferenceProblem const& p, MobaOptions const& moba) {
        return select(p, moba, {0, p.tokens()});
    }
    /// The choices of the queries `of` alone.
    std::vector<int32_t> select(ReferenceProblem const& p, MobaOptions const& moba, Queries of) {
        std::vector<Real> const q(p.q.begin(), p.q.end()), k(p.k.begin(), p.k.end());
        std::vector<int32_t> chosen(static_cast<size_t>(of.count() * p.heads * (moba.top_k - 1)), -777);
        ops_->moba_select({.chosen_THS = {chosen.data(), {of.count(), p.heads, moba.top_k - 1}},
                           .q_THK = all_queries(p, q).rows(of.begin, of.end),
                           .k_TGK = all_keys(p, k),
                           .cu_seqlens = p.cu_seqlens,
                           .moba = &moba,
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
    /// Forward and backward; full attention without `moba`.
    Result attend(ReferenceProblem const& p, MobaOptions const* moba = nullptr,
                  std::vector<int32_t> const& chosen = {}) {
        Result y = poisoned_result(p);
        attend(p, moba, chosen, {0, p.tokens()}, false, y);
        return y;
    }
    Result attend(ReferenceProblem const& p, MobaOptions const& moba) { return attend(p, &moba, select(p, moba)); }

    /// The queries `of` alone: writes their rows of o, lse and dq, and writes or adds to all of dk and dv. `chosen` is
    /// that of the whole pack.
    void attend(ReferenceProblem const& p, MobaOptions const* moba, std::vector<int32_t> const& chosen, Queries of,
                bool add_to_dkv, Result& y) {
        std::vector<Real> const q(p.q.begin(), p.q.end()), k(p.k.begin(), p.k.end()), v(p.v.begin(), p.v.end());
        std::vector<Real> const d_o(p.d_o.begin(), p.d_o.end());
        auto const queries = [&](auto& x) { return all_queries(p, x).rows(of.begin, of.end); };
        TensorView const lse_TH = TensorView(y.lse.data(), {p.tokens(), p.heads}).rows(of.begin, of.end);
        ConstView choices;
        if (moba != nullptr)
            choices = ConstView(chosen.data(), {p.tokens(), p.heads, moba->top_k - 1}).rows(of.begin, of.end);
        ops_->attention_forward({.o_THK = queries(y.o),
                                 .lse_TH = lse_TH,
                                 .q_THK = queries(q),
                                 .k_TGK = all_keys(p, k),
                                 .v_TGK = all_keys(p, v),
                                 .cu_seqlens = p.cu_seqlens,
                                 .scale = p.scale,
                                 .moba = moba,
                                 .chosen_THS = choices,
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
                                  .moba = moba,
                                  .chosen_THS = choices,
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
