// What a transformer computes. The model is written once, against this interface; HostOps (OpenBLAS, fp32 or fp64) and
// CudaOps (bf16) implement it. operations.h describes every operation and its arguments.
//
// Shape errors throw Category::internal. One thread at a time may call an Ops.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "device/device.h"
#include "kernels/block_sparse_attention/plan.h"
#include "ops/operations.h"

namespace perigee {

class Ops {
  public:
    virtual ~Ops() = default;

    virtual Device& device() = 0;
    virtual DType compute_dtype() const = 0;  ///< of weights and activations
    /// Of what accumulates: gradients, moments, statistics, and the weights that the optimizer keeps.
    DType main_dtype() const { return compute_dtype() == DType::f64 ? DType::f64 : DType::f32; }

    /// Runs one operation, or queues it on the device. All methods below that name an operation come here.
    virtual void run(Operation const& operation) = 0;

    /// Runs `body`. Equal keys must mean the same operations on the same memory, without host transfers, so that a
    /// backend may replay them as one graph without calling `body`. With an empty key `body` always runs, and a backend
    /// may replay the operations between two collectives as one graph.
    virtual void repeat(std::span<int64_t const> /*key*/, std::function<void()> const& body) { body(); }
    /// Keys may mean something else from now on.
    virtual void forget_repeated() {}

    /// Size (int32 elements) of the block-to-query routing table that block-sparse attention_forward saves for
    /// attention_backward. 0 where it would not pay, or documents are so many and short that it takes much memory; else
    /// the same for all packs of as many tokens.
    virtual int64_t routing_size(Shape const& q_THK, Shape const& k_TGK, std::span<int32_t const> cu_seqlens,
                                 BlockBudget const& budget) const = 0;

    void upload(TensorView to, void const* from);
    void download(void* to, ConstView from);
    void copy(TensorView to, ConstView from);
    void copy_rows(CopyRows const& args);
    void fill_zero(TensorView x);
    void fill_normal(FillNormal const& args);
    void round_stochastically(StochasticRounding const& args);

    void matmul(MatMul const& args);
    void quantize(Quantize const& args);
    void matmul8(QuantMatMul const& args);
    void add(TensorView accumulated, ConstView x);
    void scale(TensorView x, double factor);
    void dropout(Dropout const& args);

    void embedding_forward(EmbeddingForward const& args);
    void embedding_backward(EmbeddingBackward const& args);
    void rmsnorm_forward(RmsNormForward const& args);
    void rmsnorm_backward(RmsNormBackward const& args);
    void rope_table(RopeTable const& args);
    void qkv_forward(QkvForward const& args);
    void qkv_backward(QkvBackward const& args);
    void key_conv_forward(KeyConvForward const& args);
    void key_conv_backward(KeyConvBackward const& args);
    void select_blocks(SelectBlocks const& args);
    void attention_forward(AttentionForward const& args);
    void attention_backward(AttentionBackward const& args);
    void normed_product(NormedProduct const& args);
    void decode_qkv(DecodeQkv const& args);
    void kv_append(KvAppend const& args);
    void pool_blocks(PoolBlocks const& args);
    void decode_select(DecodeSelect const& args);
    void decode_attend(DecodeAttend const& args);
    void decode_sparse(DecodeSparse const& args);
    void sample_tokens(SampleTokens const& args);
    void swiglu_forward(TensorView y_TF, ConstView gate_up_T2F);
    void swiglu_backward(SwigluBackward const& args);

    void softmax_stats(SoftmaxStats const& args);
    void softmax_rescale(SoftmaxRescale const& args);
    void cross_entropy(CrossEntropy const& args);

    void squared_norm(TensorView sum_accumulated, ConstView x);
    void hash_bits(TensorView hash_accumulated, ConstView x);
    void weighted_sum(WeightedSum const& args);
    void adamw(AdamW const& args);
};

/// fp32 on the CPU: what `device: cpu` runs. `threads` 0 means every core this process may use.
std::unique_ptr<Ops> make_host_ops(Device& host, int threads = 0);
/// The same code in fp64, for tests that compare against finite differences.
std::unique_ptr<Ops> make_host_ops_f64(Device& host, int threads = 0);

struct CudaOptions {
    /// Every operation gives the same bits every time: the backward of attention adds up in a fixed order, which
    /// cuDNN's does not, so own kernels take its part, and matrix products run by the algorithm that cuBLASLt names
    /// first.
    bool deterministic = false;
    bool graphs = true;                            ///< repeat() replays CUDA graphs
    size_t moba_scratch = kAttentionScratchBytes;  ///< budget in bytes of plan_attention
};
/// bf16 on an NVIDIA GPU, fp32 where numbers accumulate: what `device: cuda` runs. `cuda` is from make_cuda_device.
/// Throws Category::config where the build has no CUDA.
std::unique_ptr<Ops> make_cuda_ops(Device& cuda, CudaOptions const& options = {});

/// Wall seconds this process has spent inside OpenBLAS on host operations, and their floating-point operations. A call
/// from inside a parallel region counts its wall time divided by the threads of the region, so that the seconds of a
/// step compare with its wall time. What the benchmarks report.
struct MatrixClock {
    double seconds = 0;
    double flops = 0;
};
MatrixClock host_matrix_clock();

}  // namespace perigee
