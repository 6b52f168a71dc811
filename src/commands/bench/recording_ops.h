// Ops that remember which matrix products a step asks for, and how often: what the speed of light of that step is made
// of.
#pragma once

#include <compare>
#include <map>

#include "commands/bench/timed_ops.h"

namespace perigee {

class RecordingOps final : public TimedOps {
  public:
    using TimedOps::TimedOps;

    struct Product {
        int64_t m, n, k;
        bool transpose_a, transpose_b, accumulate;
        DType result;
        auto operator<=>(Product const&) const = default;
    };
    std::map<Product, int64_t> const& products() const { return products_; }
    void record(bool on) { recording_ = on; }

    void repeat(std::span<int64_t const> key, std::function<void()> const& body) override {
        if (recording_)
            body();
        else
            TimedOps::repeat(key, body);
    }
    void run(Operation const& operation) override {
        if (auto const* const product = std::get_if<MatMul>(&operation); recording_ && product != nullptr)
            note(*product);
        TimedOps::run(operation);
    }

  private:
    void note(MatMul const& args) {
        ++products_[{.m = args.c[0],
                     .n = args.c[1],
                     .k = args.a[args.transpose_a ? 0 : 1],
                     .transpose_a = args.transpose_a,
                     .transpose_b = args.transpose_b,
                     .accumulate = args.accumulate,
                     .result = args.c.dtype}];
    }

    bool recording_ = false;
    std::map<Product, int64_t> products_;
};

}  // namespace perigee
