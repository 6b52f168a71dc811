// Ops that pass everything on to other Ops. Derived classes override run() to time, count or change operations: one
// function, whatever operations there are.
#pragma once

#include "ops/ops.h"

namespace perigee {

class ObservedOps : public Ops {
  public:
    /// `inner` must outlive this.
    explicit ObservedOps(Ops& inner) : inner_(&inner) {}

    Device& device() override { return inner_->device(); }
    DType compute_dtype() const override { return inner_->compute_dtype(); }
    void run(Operation const& operation) override { inner_->run(operation); }
    void repeat(std::span<int64_t const> key, std::function<void()> const& body) override { inner_->repeat(key, body); }
    void forget_repeated() override { inner_->forget_repeated(); }
    int64_t routing_size(Shape const& q_THK, Shape const& k_TGK, std::span<int32_t const> cu_seqlens,
                         BlockBudget const& budget) const override {
        return inner_->routing_size(q_THK, k_TGK, cu_seqlens, budget);
    }

  private:
    Ops* inner_;
};

}  // namespace perigee
