// What a transformer computes: about thirty operations of transformer size, each with its backward. The model is
// written once, against this interface; HostOps (OpenBLAS, fp32 or fp64) and CudaOps (bf16) implement it.
//
// All tensors are row-major, contiguous and on the device of the Ops. Outputs are overwritten unless the name of the
// argument says `accumulated`. Backward functions never read an output of their own. Shapes use the legend of
// tensor/tensor.h. Statistics (rstd, lse, softmax maxima and sums, nll) and the rope tables are fp32, or fp64 where
// compute_dtype() is fp64. Shape errors throw Category::internal.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/philox.h"
#include "device/device.h"
#include "kernels/moba/moba.h"
#include "tensor/tensor.h"

namespace perigee {

/// Copies `rows` runs of `width` elements. Run i starts at element begin + i * stride of its side; strides are at least
/// `width`, and the two sides do not overlap.
struct CopyRows {
    TensorView to;
    int64_t to_begin = 0;
    int64_t to_stride = 0;
    ConstView from;
    int64_t from_begin = 0;
    int64_t from_stride = 0;
    int64_t rows = 0;
    int64_t width = 0;
};

/// Independent normal numbers: value i of x becomes random.normal(part.index(i)) * stddev.
struct FillNormal {
    TensorView x;
    Philox random;
    double stddev = 1;
    TensorPart part = {};
};

/// to = from in bf16, rounded up with a probability of the part cut off: 16 random bits are added below the last that
/// stays. Element n = part.index(i) of the tensor takes the (n % 2)th half, low first, of word n % 8 / 2 of
/// random.block(n / 8). What is not finite is rounded to the nearest.
struct StochasticRounding {
    TensorView to;
    ConstView from;  ///< of main_dtype()
    Philox random;
    TensorPart part = {};
};

/// c = op(a) op(b), or c += op(a) op(b); op transposes where asked. All 2-D. a and b are of compute_dtype(), c of that
/// or of main_dtype().
struct MatMul {
    TensorView c;
    ConstView a;
    ConstView b;
    bool transpose_a = false;
    bool transpose_b = false;
    bool accumulate = false;
};

/// y = x / sqrt(mean(x^2) + eps) * w over the last dimension; `rstd_T` keeps 1/sqrt(...) for the backward.
/// With `residual_TD`, x is first replaced by x + residual, and `sum_TD` receives that sum.
struct RmsNormForward {
    TensorView y_TD;
    TensorView rstd_T;
    ConstView x_TD;
    ConstView w_D;
    double eps = 0;
    ConstView residual_TD = {};
    TensorView sum_TD = {};
};
/// `x_TD` is what was normalised (the sum, where there was a residual). With `dresidual_TD`, dx = dx_norm + dresidual,
/// which joins the two paths of a residual connection; dx may be the same memory as dresidual.
struct RmsNormBackward {
    TensorView dx_TD;
    TensorView dw_accumulated_D;
    ConstView dy_TD;
    ConstView x_TD;
    ConstView w_D;
    ConstView rstd_T;
    ConstView dresidual_TD = {};
};

/// Splits a fused projection [T, (H + 2G) K] into rotated q and k and plain v: bias, then per-head RMSNorm of q and k
/// (Qwen3), then RoPE in Hugging Face's half-split layout. Empty views switch a part off.
struct QkvForward {
    TensorView q_THK;
    TensorView k_TGK;
    TensorView v_TGK;
    TensorView qkv_TX;  ///< the projection; the bias is added in place, so that the backward can read it
    ConstView cos_TR;   ///< R = K / 2, from rope_table()
    ConstView sin_TR;
    ConstView bias_X = {};
    ConstView q_norm_K = {};
    ConstView k_norm_K = {};
    double eps = 0;
};
struct QkvBackward {
    TensorView dqkv_TX;
    ConstView dq_THK;
    ConstView dk_TGK;
    ConstView dv_TGK;
    ConstView qkv_TX = {};  ///< after the bias, as the forward left it; read only where there are norms
    ConstView cos_TR;
    ConstView sin_TR;
    TensorView dbias_accumulated_X = {};
    ConstView q_norm_K = {};
    ConstView k_norm_K = {};
    TensorView dq_norm_accumulated_K = {};
    TensorView dk_norm_accumulated_K = {};
    double eps = 0;
};

/// Causal softmax attention inside each document; query heads [g H/G, (g+1) H/G) share key/value head g.
/// `cu_seqlens` (host memory) as in Batch; empty documents are allowed. lse is the natural log-sum-exp of the scaled
/// scores. With `moba`, only the chosen blocks take part; the choice comes from moba_select.
/// The borders and the keys cover all T tokens of a pack, the queries a range of them: the rows of q and of everything
/// shaped like q are the tokens [query_begin, query_begin + rows).
struct AttentionForward {
    TensorView o_THK;
    TensorView lse_TH;
    ConstView q_THK;
    ConstView k_TGK;
    ConstView v_TGK;
    std::span<int32_t const> cu_seqlens;
    double scale = 0;  ///< of the scores: positive, or refused
    MobaOptions const* moba = nullptr;
    ConstView chosen_THS = {};
    TensorView lists_L = {};  ///< int32, moba_lists_size() of them, overwritten for the backward; or none
    int64_t query_begin = 0;
};
/// dk and dv are what these queries contribute, for all T tokens.
struct AttentionBackward {
    TensorView dq_THK;
    TensorView dk_TGK;
    TensorView dv_TGK;
    ConstView do_THK;
    ConstView q_THK;
    ConstView k_TGK;
    ConstView v_TGK;
    ConstView o_THK;
    ConstView lse_TH;
    std::span<int32_t const> cu_seqlens;
    double scale = 0;  ///< of the scores: positive, or refused
    MobaOptions const* moba = nullptr;
    ConstView chosen_THS = {};
    ConstView lists_L = {};  ///< as the forward left them; none: they are made again
    int64_t query_begin = 0;
    bool add_to_dkv = false;  ///< dk and dv += instead of =
};

/// The blocks each query attends besides its own: chosen [T, H, S] int32 with S = max(top_k - 1, 0), as block indices
/// inside the document in ascending order, unused places -1 at the end. Pinned rules: docs/numerics.md.
struct MobaSelect {
    TensorView chosen_THS;
    ConstView q_THK;
    ConstView k_TGK;
    std::span<int32_t const> cu_seqlens;
    MobaOptions const* moba = nullptr;
    int64_t query_begin = 0;  ///< as in AttentionForward
};

/// Per-row statistics of a softmax over the vocabulary rows [vocab_begin, vocab_begin + V) of a sharded classifier.
struct SoftmaxStats {
    TensorView max_T;     ///< largest logit
    TensorView sum_T;     ///< sum of exp(logit - max)
    TensorView target_T;  ///< the target's logit, 0 where another shard owns the target
    ConstView logits_TV;
    ConstView targets_T;  ///< int32, global ids
    int64_t vocab_begin = 0;
};
/// From global statistics: nll = max + log(sum) - target (0 where the weight is 0), and, unless `dlogits_TV` is empty,
/// dlogits = weight * scale * (softmax - onehot); dlogits may be the same memory as logits.
struct CrossEntropy {
    TensorView nll_T;
    TensorView dlogits_TV = {};
    ConstView logits_TV;
    ConstView targets_T;
    ConstView weights_T;  ///< f32
    ConstView max_T;
    ConstView sum_T;
    ConstView target_T;
    double scale = 1;
    int64_t vocab_begin = 0;
};

/// AdamW with decoupled weight decay (Loshchilov & Hutter 2019) on flat ranges:
/// m, v <- moments of g * grad_scale; w <- w - lr (m_hat / (sqrt(v_hat) + eps) + weight_decay w). All of main_dtype().
struct AdamW {
    TensorView w;
    TensorView m;
    TensorView v;
    ConstView g;
    double lr = 0;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0;
    double grad_scale = 1;    ///< clipping
    int64_t step = 1;         ///< 1 at the first update, for the bias correction
    TensorView rounded = {};  ///< receives the new w in compute_dtype(), where that is another
};

class Ops {
  public:
    virtual ~Ops() = default;

    virtual Device& device() = 0;
    virtual DType compute_dtype() const = 0;  ///< of weights and activations
    /// Of what accumulates: gradients, moments, statistics, and the weights that the optimizer keeps.
    DType main_dtype() const { return compute_dtype() == DType::f64 ? DType::f64 : DType::f32; }

    /// Runs `body`: operations without transfers that are the same, on the same memory, whenever the key is. A backend
    /// may note them and queue them as one the next time, without running `body`.
    virtual void repeat(std::span<int64_t const> /*key*/, std::function<void()> const& body) { body(); }
    /// Keys may mean something else from now on.
    virtual void forget_repeated() {}

    // Moving bytes between the host and the device; both return when the host memory may be reused or read.
    virtual void upload(TensorView to, void const* from) = 0;
    virtual void download(void* to, ConstView from) = 0;
    virtual void copy(TensorView to, ConstView from) = 0;  ///< rounds or widens between compute_dtype(), main_dtype()
    virtual void copy_rows(CopyRows const& args) = 0;
    virtual void fill_zero(TensorView x) = 0;
    virtual void fill_normal(FillNormal const& args) = 0;
    virtual void round_stochastically(StochasticRounding const& args) = 0;

    virtual void matmul(MatMul const& args) = 0;
    virtual void add(TensorView accumulated, ConstView x) = 0;  ///< accumulated += x
    virtual void scale(TensorView x, double factor) = 0;        ///< x *= factor

    /// x[t] = table[ids[t] - vocab_begin], or zeros where another shard of the vocabulary owns ids[t]; ids int32, in
    /// the whole vocabulary (checked by the data loader).
    virtual void embedding_forward(TensorView x_TD, ConstView ids_T, ConstView table_VD, int64_t vocab_begin) = 0;
    /// Deterministic: contributions to a row are added in an order that depends on the ids alone, that of t where there
    /// are few. Ids of other shards contribute nothing.
    virtual void embedding_backward(TensorView dtable_accumulated_VD, ConstView ids_T, ConstView dx_TD,
                                    int64_t vocab_begin) = 0;

    virtual void rmsnorm_forward(RmsNormForward const& args) = 0;
    virtual void rmsnorm_backward(RmsNormBackward const& args) = 0;

    /// cos and sin of position * frequency, times `magnitude` (YaRN's attention factor; 1 otherwise).
    /// positions int32 [T]; `inverse_frequencies` R values in host memory.
    virtual void rope_table(TensorView cos_TR, TensorView sin_TR, ConstView positions_T,
                            std::span<double const> inverse_frequencies, double magnitude) = 0;
    virtual void qkv_forward(QkvForward const& args) = 0;
    virtual void qkv_backward(QkvBackward const& args) = 0;

    virtual void attention_forward(AttentionForward const& args) = 0;
    virtual void attention_backward(AttentionBackward const& args) = 0;
    virtual void moba_select(MobaSelect const& args) = 0;
    /// Numbers that attention_forward with these options may leave to attention_backward: which queries chose a block,
    /// for every block. 0 where that is of no use, or documents are so many and short that it takes much memory; else
    /// the same for all packs of as many tokens.
    virtual int64_t moba_lists_size(Shape const& q_THK, Shape const& k_TGK, std::span<int32_t const> cu_seqlens,
                                    MobaOptions const& moba) const = 0;

    /// y = silu(gate) * up; the fused projection holds gate in columns [0, F), up in [F, 2F).
    virtual void swiglu_forward(TensorView y_TF, ConstView gate_up_T2F) = 0;
    /// dgate_up may be the same memory as gate_up.
    virtual void swiglu_backward(TensorView dgate_up_T2F, ConstView dy_TF, ConstView gate_up_T2F) = 0;

    virtual void softmax_stats(SoftmaxStats const& args) = 0;
    /// sum *= exp(max - global_max): sums of exponentials over shards can then be added.
    virtual void softmax_rescale(TensorView sum_T, ConstView max_T, ConstView global_max_T) = 0;
    virtual void cross_entropy(CrossEntropy const& args) = 0;

    // Sums stay on the device, f64 [1], until the caller downloads them.
    /// sum += the sum of squares, in fp64; not finite as soon as one element is not finite.
    virtual void squared_norm(TensorView sum_accumulated, ConstView x) = 0;
    /// sum += the sum of weight * value, in fp64; values of main_dtype(), weights f32.
    virtual void weighted_sum(TensorView sum_accumulated, ConstView values_T, ConstView weights_T) = 0;
    virtual void adamw(AdamW const& args) = 0;
};

/// fp32 on the CPU: what `device: cpu` runs. `threads` 0 means every core this process may use.
std::unique_ptr<Ops> make_host_ops(Device& host, int threads = 0);
/// The same code in fp64, for tests that compare against finite differences.
std::unique_ptr<Ops> make_host_ops_f64(Device& host, int threads = 0);

struct CudaOptions {
    /// Every operation gives the same bits every time: full attention's backward, which cuDNN adds up in any order,
    /// then runs on the own, slower kernels, MoBA's adds up in a fixed order, and matrix products run by the algorithm
    /// that cuBLASLt names first.
    bool deterministic = false;
    bool graphs = true;                       ///< repeat() replays CUDA graphs
    size_t moba_scratch = kMobaScratchBytes;  ///< bytes that MoBA's kernels may take: the option of plan_moba
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
