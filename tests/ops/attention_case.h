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
        std::vector<Real> const q(p.q.begin(), p.q.end()), k(p.k.begin(), p.k.end());
        Shape const shape = choice(p, moba);
        std::vector<int32_t> chosen(static_cast<size_t>(shape.size()), -777);
        ops_->moba_select({.chosen_THS = {chosen.data(), shape},
                           .q_THK = {q.data(), queries(p)},
                           .k_TGK = {k.data(), keys(p)},
                           .cu_seqlens = p.cu_seqlens,
                           .moba = &moba});
        return chosen;
    }

    struct Result {
        std::vector<Real> o, lse, dq, dk, dv;
        bool operator==(Result const&) const = default;
    };
    /// Forward and backward; full attention without `moba`.
    Result attend(ReferenceProblem const& p, MobaOptions const* moba = nullptr,
                  std::vector<int32_t> const& chosen = {}) {
        std::vector<Real> const q(p.q.begin(), p.q.end()), k(p.k.begin(), p.k.end()), v(p.v.begin(), p.v.end());
        std::vector<Real> const d_o(p.d_o.begin(), p.d_o.end());
        int64_t const T = p.tokens();
        Result y{poisoned<Real>(std::ssize(q)), poisoned<Real>(T * p.heads), poisoned<Real>(std::ssize(q)),
                 poisoned<Real>(std::ssize(k)), poisoned<Real>(std::ssize(k))};
        ConstView const choices = moba == nullptr ? ConstView{} : ConstView{chosen.data(), choice(p, *moba)};
        ops_->attention_forward({.o_THK = {y.o.data(), queries(p)},
                                 .lse_TH = {y.lse.data(), {T, p.heads}},
                                 .q_THK = {q.data(), queries(p)},
                                 .k_TGK = {k.data(), keys(p)},
                                 .v_TGK = {v.data(), keys(p)},
                                 .cu_seqlens = p.cu_seqlens,
                                 .scale = p.scale,
                                 .moba = moba,
                                 .chosen_THS = choices});
        ops_->attention_backward({.dq_THK = {y.dq.data(), queries(p)},
                                  .dk_TGK = {y.dk.data(), keys(p)},
                                  .dv_TGK = {y.dv.data(), keys(p)},
                                  .do_THK = {d_o.data(), queries(p)},
                                  .q_THK = {q.data(), queries(p)},
                                  .k_TGK = {k.data(), keys(p)},
                                  .v_TGK = {v.data(), keys(p)},
                                  .o_THK = {y.o.data(), queries(p)},
                                  .lse_TH = {y.lse.data(), {T, p.heads}},
                                  .cu_seqlens = p.cu_seqlens,
                                  .scale = p.scale,
                                  .moba = moba,
                                  .chosen_THS = choices});
        return y;
    }
    Result attend(ReferenceProblem const& p, MobaOptions const& moba) { return attend(p, &moba, select(p, moba)); }

    Ops& ops() { return *ops_; }

  private:
    static Shape queries(ReferenceProblem const& p) { return {p.tokens(), p.heads, p.head_dim}; }
    static Shape keys(ReferenceProblem const& p) { return {p.tokens(), p.kv_heads, p.head_dim}; }
    static Shape choice(ReferenceProblem const& p, MobaOptions const& moba) {
        return {p.tokens(), p.heads, moba.top_k - 1};
    }

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
