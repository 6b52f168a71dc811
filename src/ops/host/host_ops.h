// Ops on the CPU: shape checks here, the work in functions.h, attention.h and blas.h.
#pragma once

#include <vector>

#include "ops/ops.h"

namespace perigee {

template <class Real>
class HostOps : public Ops {
  public:
    /// `threads` as in make_host_ops.
    HostOps(Device& device, int threads);

    Device& device() override { return *device_; }
    DType compute_dtype() const override { return dtype_of<Real>::value; }

    void run(Operation const& operation) override {
        std::visit([this](auto const& args) { compute(args); }, operation);
    }
    int64_t routing_size(Shape const&, Shape const&, std::span<int32_t const>, BlockBudget const&) const override {
        return 0;
    }

  private:
    // One for every operation in the list.
    void compute(Upload const& args);
    void compute(Download const& args);
    void compute(Copy const& args);
    void compute(CopyRows const& args);
    void compute(FillZero const& args);
    void compute(FillNormal const& args);
    void compute(StochasticRounding const& args);
    void compute(MatMul const& args);
    void compute(Quantize const& args);
    void compute(QuantMatMul const& args);
    void compute(Add const& args);
    void compute(Scale const& args);
    void compute(Dropout const& args);
    void compute(EmbeddingForward const& args);
    void compute(EmbeddingBackward const& args);
    void compute(RmsNormForward const& args);
    void compute(RmsNormBackward const& args);
    void compute(RopeTable const& args);
    void compute(QkvForward const& args);
    void compute(QkvBackward const& args);
    void compute(KeyConvForward const& args);
    void compute(KeyConvBackward const& args);
    void compute(SelectBlocks const& args);
    void compute(AttentionForward const& args);
    void compute(AttentionBackward const& args);
    void compute(NormedProduct const& args);
    void compute(DecodeQkv const& args);
    void compute(KvAppend const& args);
    void compute(PoolBlocks const& args);
    void compute(DecodeSelect const& args);
    void compute(DecodeAttend const& args);
    void compute(DecodeSparse const& args);
    void compute(SampleTokens const& args);
    void compute(SwigluForward const& args);
    void compute(SwigluBackward const& args);
    void compute(SoftmaxStats const& args);
    void compute(SoftmaxRescale const& args);
    void compute(CrossEntropy const& args);
    void compute(SquaredNorm const& args);
    void compute(HashBits const& args);
    void compute(WeightedSum const& args);
    void compute(AdamW const& args);

    Device* device_;
    std::vector<Real> scratch_;  ///< partial sums of the operation that runs
};

}  // namespace perigee
