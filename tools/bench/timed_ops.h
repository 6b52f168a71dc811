// Ops that time every call of another Ops: the per-operation table of bench_step.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "ops/ops.h"

namespace perigee {

class TimedOps : public Ops {
  public:
    explicit TimedOps(Ops& inner) : inner_(inner) {}

    struct Entry {
        int64_t calls = 0;
        double seconds = 0;
        double blas_seconds = 0;  ///< of them inside OpenBLAS
    };
    std::map<std::string, Entry> const& table() const { return table_; }
    void clear() { table_.clear(); }
    /// Whether the time of a call ends when the device has finished it, or when the call returns.
    void wait(bool on) { waits_ = on; }

    Device& device() override { return inner_.device(); }
    DType compute_dtype() const override { return inner_.compute_dtype(); }

    /// Waiting needs one operation at a time.
    void repeat(std::span<int64_t const> key, std::function<void()> const& body) override {
        if (waits_)
            body();
        else
            inner_.repeat(key, body);
    }
    void forget_repeated() override { inner_.forget_repeated(); }
    void upload(TensorView to, void const* from) override {
        timed("upload", [&] { inner_.upload(to, from); });
    }
    void download(void* to, ConstView from) override {
        timed("download", [&] { inner_.download(to, from); });
    }
    void copy(TensorView to, ConstView from) override {
        timed("copy", [&] { inner_.copy(to, from); });
    }
    void copy_rows(CopyRows const& args) override {
        timed("copy_rows", [&] { inner_.copy_rows(args); });
    }
    void fill_zero(TensorView x) override {
        timed("fill_zero", [&] { inner_.fill_zero(x); });
    }
    void fill_normal(FillNormal const& args) override {
        timed("fill_normal", [&] { inner_.fill_normal(args); });
    }
    void round_stochastically(StochasticRounding const& args) override {
        timed("round_stochastically", [&] { inner_.round_stochastically(args); });
    }
    void matmul(MatMul const& args) override {
        timed(args.accumulate ? "matmul (weight gradients)" : "matmul", [&] { inner_.matmul(args); });
    }
    void add(TensorView accumulated, ConstView x) override {
        timed("add", [&] { inner_.add(accumulated, x); });
    }
    void scale(TensorView x, double factor) override {
        timed("scale", [&] { inner_.scale(x, factor); });
    }
    void embedding_forward(TensorView x_TD, ConstView ids_T, ConstView table_VD, int64_t vocab_begin) override {
        timed("embedding_forward", [&] { inner_.embedding_forward(x_TD, ids_T, table_VD, vocab_begin); });
    }
    void embedding_backward(TensorView dtable_accumulated_VD, ConstView ids_T, ConstView dx_TD,
                            int64_t vocab_begin) override {
        timed("embedding_backward",
              [&] { inner_.embedding_backward(dtable_accumulated_VD, ids_T, dx_TD, vocab_begin); });
    }
    void rmsnorm_forward(RmsNormForward const& args) override {
        timed("rmsnorm_forward", [&] { inner_.rmsnorm_forward(args); });
    }
    void rmsnorm_backward(RmsNormBackward const& args) override {
        timed("rmsnorm_backward", [&] { inner_.rmsnorm_backward(args); });
    }
    void rope_table(TensorView cos_TR, TensorView sin_TR, ConstView positions_T,
                    std::span<double const> inverse_frequencies, double magnitude) override {
        timed("rope_table", [&] { inner_.rope_table(cos_TR, sin_TR, positions_T, inverse_frequencies, magnitude); });
    }
    void qkv_forward(QkvForward const& args) override {
        timed("qkv_forward", [&] { inner_.qkv_forward(args); });
    }
    void qkv_backward(QkvBackward const& args) override {
        timed("qkv_backward", [&] { inner_.qkv_backward(args); });
    }
    void attention_forward(AttentionForward const& args) override {
        timed("attention_forward", [&] { inner_.attention_forward(args); });
    }
    void attention_backward(AttentionBackward const& args) override {
        timed("attention_backward", [&] { inner_.attention_backward(args); });
    }
    int64_t moba_lists_size(Shape const& q_THK, Shape const& k_TGK, std::span<int32_t const> cu_seqlens,
                            MobaOptions const& moba) const override {
        return inner_.moba_lists_size(q_THK, k_TGK, cu_seqlens, moba);
    }
    void moba_select(MobaSelect const& args) override {
        timed("moba_select", [&] { inner_.moba_select(args); });
    }
    void swiglu_forward(TensorView y_TF, ConstView gate_up_T2F) override {
        timed("swiglu_forward", [&] { inner_.swiglu_forward(y_TF, gate_up_T2F); });
    }
    void swiglu_backward(TensorView dgate_up_T2F, ConstView dy_TF, ConstView gate_up_T2F) override {
        timed("swiglu_backward", [&] { inner_.swiglu_backward(dgate_up_T2F, dy_TF, gate_up_T2F); });
    }
    void softmax_stats(SoftmaxStats const& args) override {
        timed("softmax_stats", [&] { inner_.softmax_stats(args); });
    }
    void softmax_rescale(TensorView sum_T, ConstView max_T, ConstView global_max_T) override {
        timed("softmax_rescale", [&] { inner_.softmax_rescale(sum_T, max_T, global_max_T); });
    }
    void cross_entropy(CrossEntropy const& args) override {
        timed("cross_entropy", [&] { inner_.cross_entropy(args); });
    }
    void squared_norm(TensorView sum_accumulated, ConstView x) override {
        timed("squared_norm", [&] { inner_.squared_norm(sum_accumulated, x); });
    }
    void weighted_sum(TensorView sum_accumulated, ConstView values_T, ConstView weights_T) override {
        timed("weighted_sum", [&] { inner_.weighted_sum(sum_accumulated, values_T, weights_T); });
    }
    void adamw(AdamW const& args) override {
        timed("adamw", [&] { inner_.adamw(args); });
    }

  private:
    template <class Body>
    void timed(char const* name, Body body) {
        double const blas = host_matrix_clock().seconds;
        auto const start = std::chrono::steady_clock::now();
        body();
        if (waits_) inner_.device().synchronize();
        std::chrono::duration<double> const elapsed = std::chrono::steady_clock::now() - start;
        Entry& entry = table_[name];
        ++entry.calls;
        entry.seconds += elapsed.count();
        entry.blas_seconds += host_matrix_clock().seconds - blas;
    }

    Ops& inner_;
    std::map<std::string, Entry> table_;
    bool waits_ = false;
};

}  // namespace perigee
