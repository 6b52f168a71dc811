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

    void upload(TensorView to, void const* from) override;
    void download(void* to, ConstView from) override;
    void copy(TensorView to, ConstView from) override;
    void copy_rows(CopyRows const& args) override;
    void fill_zero(TensorView x) override;
    void fill_normal(FillNormal const& args) override;
    void round_stochastically(StochasticRounding const& args) override;

    void matmul(MatMul const& args) override;
    void add(TensorView accumulated, ConstView x) override;
    void scale(TensorView x, double factor) override;

    void embedding_forward(TensorView x_TD, ConstView ids_T, ConstView table_VD, int64_t vocab_begin) override;
    void embedding_backward(TensorView dtable_accumulated_VD, ConstView ids_T, ConstView dx_TD,
                            int64_t vocab_begin) override;

    void rmsnorm_forward(RmsNormForward const& args) override;
    void rmsnorm_backward(RmsNormBackward const& args) override;

    void rope_table(TensorView cos_TR, TensorView sin_TR, ConstView positions_T,
                    std::span<double const> inverse_frequencies, double magnitude) override;
    void qkv_forward(QkvForward const& args) override;
    void qkv_backward(QkvBackward const& args) override;

    void attention_forward(AttentionForward const& args) override;
    void attention_backward(AttentionBackward const& args) override;
    void moba_select(MobaSelect const& args) override;
    int64_t moba_lists_size(Shape const&, Shape const&, std::span<int32_t const>, MobaOptions const&) const override {
        return 0;
    }

    void swiglu_forward(TensorView y_TF, ConstView gate_up_T2F) override;
    void swiglu_backward(TensorView dgate_up_T2F, ConstView dy_TF, ConstView gate_up_T2F) override;

    void softmax_stats(SoftmaxStats const& args) override;
    void softmax_rescale(TensorView sum_T, ConstView max_T, ConstView global_max_T) override;
    void cross_entropy(CrossEntropy const& args) override;

    void squared_norm(TensorView sum_accumulated, ConstView x) override;
    void weighted_sum(TensorView sum_accumulated, ConstView values_T, ConstView weights_T) override;
    void adamw(AdamW const& args) override;

  private:
    Device* device_;
    std::vector<Real> scratch_;  ///< partial sums of the operation that runs
};

}  // namespace perigee
