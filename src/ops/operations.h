// The operations of a transformer, each as the struct of its arguments. `Operation` lists them all. Ops (ops.h) runs
// them.
//
// All tensors are row-major, contiguous and on the device of the Ops. Outputs are overwritten unless the name of the
// argument says `accumulated`. Backward operations never read an output of their own. Shapes use the legend of
// tensor/tensor.h. Statistics (rstd, lse, softmax maxima and sums, nll) and the rope tables are fp32, or fp64 where
// compute_dtype() is fp64.
//
// A new operation: its struct with a kName, its place in `Operation`, a named method of Ops, and a compute() in HostOps
// and in CudaOps, which do not compile without. What times, counts or plays operations needs no change.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "base/philox.h"
#include "ops/attended.h"
#include "ops/decode_operations.h"
#include "tensor/quantized.h"
#include "tensor/tensor.h"

namespace perigee {

/// Moves bytes from host memory to the device. Returns when the host memory may be reused.
struct Upload {
    static constexpr char const* kName = "upload";
    TensorView to;
    void const* from;
};
/// Moves bytes from the device to host memory. Returns when they can be read.
struct Download {
    static constexpr char const* kName = "download";
    void* to;
    ConstView from;
};
/// to = from; rounds or widens between compute_dtype() and main_dtype().
struct Copy {
    static constexpr char const* kName = "copy";
    TensorView to;
    ConstView from;
};

/// Copies `rows` runs of `width` elements. Run i starts at element begin + i * stride of its side; strides are at least
/// `width`, and the two sides do not overlap.
struct CopyRows {
    static constexpr char const* kName = "copy_rows";
    TensorView to;
    int64_t to_begin = 0;
    int64_t to_stride = 0;
    ConstView from;
    int64_t from_begin = 0;
    int64_t from_stride = 0;
    int64_t rows = 0;
    int64_t width = 0;
};

struct FillZero {
    static constexpr char const* kName = "fill_zero";
    TensorView x;
};

/// Independent normal numbers: value i of x becomes random.normal(part.index(i)) * stddev.
struct FillNormal {
    static constexpr char const* kName = "fill_normal";
    TensorView x;
    Philox random;
    double stddev = 1;
    TensorPart part = {};
};

/// to = from in bf16, rounded up with a probability of the part cut off: 16 random bits are added below the last that
/// stays. Element n = part.index(i) of the tensor takes the (n % 2)th half, low first, of word n % 8 / 2 of
/// random.block(n / 8). What is not finite is rounded to the nearest.
struct StochasticRounding {
    static constexpr char const* kName = "round_stochastically";
    TensorView to;
    ConstView from;  ///< of main_dtype()
    Philox random;
    TensorPart part = {};
};

/// c = op(a) op(b), or c += op(a) op(b); op transposes where asked. All 2-D. a and b are of compute_dtype(), c of that
/// or of main_dtype().
struct MatMul {
    static constexpr char const* kName = "matmul";
    TensorView c;
    ConstView a;
    ConstView b;
    bool transpose_a = false;
    bool transpose_b = false;
    bool accumulate = false;
};

/// Quantises a matrix x [R, C] to E4M3. Each tile is divided by its scale (base/fp8.h) and rounded to nearest. A tile
/// with a non-finite element becomes all NaN. `transposed` is x^T [C, R] with the same kind of tiles. With square tiles
/// it holds the same values as `to`. With row tiles it is requantised from the dequantised values of `to`, along R,
/// which rounds only values that are small within their new tile. Either output may be empty. R must be a multiple of
/// 128 for `transposed` and for square tiles.
struct Quantize {
    static constexpr char const* kName = "quantize";
    QuantTensor to;
    QuantTensor transposed;
    ConstView x;                           ///< of compute_dtype()
    TensorView counts_accumulated_K = {};  ///< f64 [kQuantCounts], optional: this matrix is added. `to` must be set
};

/// c = a b^T, or c += a b^T, of the dequantised values. a [M, K] has row tiles, b [N, K] either kind; K is a multiple
/// of 128. c is of compute_dtype() or main_dtype().
struct QuantMatMul {
    static constexpr char const* kName = "matmul8";
    TensorView c;
    ConstQuantTensor a;
    ConstQuantTensor b;
    bool accumulate = false;
};

/// accumulated += x
struct Add {
    static constexpr char const* kName = "add";
    TensorView accumulated;
    ConstView x;
};

/// x *= factor
struct Scale {
    static constexpr char const* kName = "scale";
    TensorView x;
    double factor;
};

/// Inverted dropout: y = x / (1 - rate) for kept elements, else 0. y may alias x. Element n = part.index(i) of the
/// tensor draws the 16-bit half n % 2 (low half first) of word n % 8 / 2 of random.block(n / 8). It is dropped if this
/// is below dropout_threshold(rate), which is rate * 65536 rounded.
struct Dropout {
    static constexpr char const* kName = "dropout";
    TensorView y;
    ConstView x;
    double rate = 0;
    Philox random;
    TensorPart part = {};
};
constexpr uint32_t dropout_threshold(double rate) { return static_cast<uint32_t>(rate * 65536 + 0.5); }

/// x[t] = table[ids[t] - vocab_begin], or zeros where another shard of the vocabulary owns ids[t]; ids int32, in the
/// whole vocabulary (checked by the data loader).
struct EmbeddingForward {
    static constexpr char const* kName = "embedding_forward";
    TensorView x_TD;
    ConstView ids_T;
    ConstView table_VD;
    int64_t vocab_begin;
};
/// Deterministic: contributions to a row are added in an order that depends on the ids alone, that of t where there are
/// few. Ids of other shards contribute nothing.
struct EmbeddingBackward {
    static constexpr char const* kName = "embedding_backward";
    TensorView dtable_accumulated_VD;
    ConstView ids_T;
    ConstView dx_TD;
    int64_t vocab_begin;
};

/// y = x / sqrt(mean(x^2) + eps) * w over the last dimension; `rstd_T` keeps 1/sqrt(...) for the backward.
/// With `residual_TD`, x is first replaced by x + residual, and `sum_TD` receives that sum.
struct RmsNormForward {
    static constexpr char const* kName = "rmsnorm_forward";
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
    static constexpr char const* kName = "rmsnorm_backward";
    TensorView dx_TD;
    TensorView dw_accumulated_D;
    ConstView dy_TD;
    ConstView x_TD;
    ConstView w_D;
    ConstView rstd_T;
    ConstView dresidual_TD = {};
};

/// cos and sin of position * frequency, times `magnitude` (YaRN's attention factor; 1 otherwise).
struct RopeTable {
    static constexpr char const* kName = "rope_table";
    TensorView cos_TR;
    TensorView sin_TR;
    ConstView positions_T;                        ///< int32
    std::span<double const> inverse_frequencies;  ///< R values in host memory
    double magnitude;
};

/// Splits a fused projection [T, (H + 2G) K] into rotated q and k and plain v: bias, then per-head RMSNorm of q and k
/// (Qwen3), then RoPE in Hugging Face's half-split layout. Empty views switch a part off.
struct QkvForward {
    static constexpr char const* kName = "qkv_forward";
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
    static constexpr char const* kName = "qkv_backward";
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

/// Causal per-channel convolution of keys before RoPE, with a residual (FlashMoBA, arXiv 2511.11571): y[t, c] = x[t, c]
/// + silu(sum over l < W of w[c, l] x[t - l, c]), with W from 1 to kWidestKeyConv. The sum stops at the start of the
/// document. `y_TX` is the fused projection; only its columns [first, first + C) are written.
struct KeyConvForward {
    static constexpr char const* kName = "key_conv_forward";
    TensorView y_TX;
    ConstView x_TC;
    ConstView w_CW;
    ConstView positions_T;  ///< int32: tokens of the document before this one; all of them are rows of x
    int64_t first = 0;
};
/// `dx_TX` is the gradient of the fused projection; only the same columns are written.
struct KeyConvBackward {
    static constexpr char const* kName = "key_conv_backward";
    TensorView dx_TX;
    TensorView dw_accumulated_CW;
    ConstView dy_TC;
    ConstView x_TC;
    ConstView w_CW;
    ConstView positions_T;
    int64_t first = 0;
};
inline constexpr int64_t kWidestKeyConv = 5;

/// Causal softmax attention inside each document; query heads [g H/G, (g+1) H/G) share key/value head g.
/// `cu_seqlens` (host memory) as in Batch; empty documents are allowed. lse is the natural log-sum-exp of the scaled
/// scores.
/// The borders and the keys cover all T tokens of a pack, the queries a range of them: the rows of q and of everything
/// shaped like q are the tokens [query_begin, query_begin + rows).
struct AttentionForward {
    static constexpr char const* kName = "attention_forward";
    TensorView o_THK;
    TensorView lse_TH;
    ConstView q_THK;
    ConstView k_TGK;
    ConstView v_TGK;
    std::span<int32_t const> cu_seqlens;
    double scale = 0;  ///< of the scores: positive, or refused
    Attended attended = FullAttention{};
    int64_t query_begin = 0;
};
/// dk and dv are what these queries contribute, for all T tokens.
struct AttentionBackward {
    static constexpr char const* kName = "attention_backward";
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
    double scale = 0;                     ///< of the scores: positive, or refused
    Attended attended = FullAttention{};  ///< with the routing that the forward left; without, it is made again
    int64_t query_begin = 0;
    bool add_to_dkv = false;  ///< dk and dv += instead of =
};

/// The blocks each query attends besides its local one: chosen [T, H, S] int32 with S = top_k - 1, as block indices
/// inside the document in ascending order, unused slots -1 at the end. The gate's rules: docs/numerics.md.
struct SelectBlocks {
    static constexpr char const* kName = "select_blocks";
    TensorView chosen_THS;
    ConstView q_THK;
    ConstView k_TGK;
    std::span<int32_t const> cu_seqlens;
    Selection selection;      ///< not full attention
    int64_t query_begin = 0;  ///< as in AttentionForward
    int64_t first_head = 0;   ///< number of the first query head here among all of the model
};

/// y = silu(gate) * up; the fused projection holds gate in columns [0, F), up in [F, 2F).
struct SwigluForward {
    static constexpr char const* kName = "swiglu_forward";
    TensorView y_TF;
    ConstView gate_up_T2F;
};
/// Writes the plain gradient, or the gradient quantised as by Quantize, without an intermediate rounding to bf16.
struct SwigluBackward {
    static constexpr char const* kName = "swiglu_backward";
    TensorView dgate_up_T2F;  ///< may alias gate_up; empty if and only if `quantised` is set
    ConstView dy_TF;
    ConstView gate_up_T2F;
    QuantTensor quantised_T2F = {};
    QuantTensor transposed_2FT = {};  ///< set if and only if quantised is
};

/// Per-row statistics of a softmax over the vocabulary rows [vocab_begin, vocab_begin + V) of a sharded classifier.
struct SoftmaxStats {
    static constexpr char const* kName = "softmax_stats";
    TensorView max_T;     ///< largest logit
    TensorView sum_T;     ///< sum of exp(logit - max)
    TensorView target_T;  ///< the target's logit, 0 where another shard owns the target
    ConstView logits_TV;
    ConstView targets_T;  ///< int32, global ids
    int64_t vocab_begin = 0;
};
/// sum *= exp(max - global_max): sums of exponentials over shards can then be added.
struct SoftmaxRescale {
    static constexpr char const* kName = "softmax_rescale";
    TensorView sum_T;
    ConstView max_T;
    ConstView global_max_T;
};
/// From global statistics: nll = max + log(sum) - target (0 where the weight is 0), and, unless `dlogits_TV` is empty,
/// dlogits = weight * scale * (softmax - onehot); dlogits may be the same memory as logits.
struct CrossEntropy {
    static constexpr char const* kName = "cross_entropy";
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

// Sums stay on the device, f64 [1], until the caller downloads them.
/// sum += the sum of squares, in fp64; not finite as soon as one element is not finite.
struct SquaredNorm {
    static constexpr char const* kName = "squared_norm";
    TensorView sum_accumulated;
    ConstView x;
};
/// hash (i64 [1]) += hash_of(i, bits of x[i]) summed over the elements, modulo 2^64 (kernels/flat/hash.h): the same
/// number on every device and in every order. x is f32, f64 or bf16.
struct HashBits {
    static constexpr char const* kName = "hash_bits";
    TensorView hash_accumulated;
    ConstView x;
};
/// sum += the sum of weight * value, in fp64.
struct WeightedSum {
    static constexpr char const* kName = "weighted_sum";
    TensorView sum_accumulated;
    ConstView values_T;   ///< of main_dtype()
    ConstView weights_T;  ///< f32
};

/// AdamW with decoupled weight decay (Loshchilov & Hutter 2019) on flat ranges:
/// m, v <- moments of g * grad_scale; w <- w - lr (m_hat / (sqrt(v_hat) + eps) + weight_decay w). All of main_dtype(),
/// or m and v both in bf16. The update then uses the new moments before rounding, and stores them with stochastic
/// rounding as in StochasticRounding. Element n = part.index(i) of the tensor uses word n % 4 of random.block(n / 4):
/// its low half for m, its high half for v.
struct AdamW {
    static constexpr char const* kName = "adamw";
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
    Philox random = {0, Purpose::rounding};
    TensorPart part = {};
};

using Operation =
    std::variant<Upload, Download, Copy, CopyRows, FillZero, FillNormal, StochasticRounding, MatMul, Quantize,
                 QuantMatMul, Add, Scale, Dropout, EmbeddingForward, EmbeddingBackward, RmsNormForward, RmsNormBackward,
                 RopeTable, QkvForward, QkvBackward, KeyConvForward, KeyConvBackward, SelectBlocks, AttentionForward,
                 AttentionBackward, NormedProduct, DecodeQkv, KvAppend, PoolBlocks, DecodeSelect, DecodeAttend,
                 DecodeSparse, SampleTokens, SwigluForward, SwigluBackward, SoftmaxStats, SoftmaxRescale, CrossEntropy,
                 SquaredNorm, HashBits, WeightedSum, AdamW>;

/// "matmul"
char const* name_of(Operation const& operation);

}  // namespace perigee
