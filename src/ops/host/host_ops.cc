#include "ops/host/host_ops.h"

#include <cstring>

#include "ops/checks.h"
#include "ops/host/attention.h"
#include "ops/host/blas.h"
#include "ops/host/decode.h"
#include "ops/host/functions.h"
#include "ops/parts.h"

namespace perigee {

namespace {

auto room_in(std::vector<std::byte>& memory) {
    return [&memory](size_t bytes) {
        memory.resize(bytes);
        return memory.data();
    };
}

}  // namespace

template <class Real>
HostOps<Real>::HostOps(Device& device, int threads) : device_(&device) {
    PERIGEE_CHECK(device.is_host(), "host operations on {}", device.name());
    host::set_threads(threads);
}

template <class Real>
void HostOps<Real>::compute(Upload const& args) {
    if (args.to.bytes() > 0) std::memcpy(args.to.data, args.from, static_cast<size_t>(args.to.bytes()));
}
template <class Real>
void HostOps<Real>::compute(Download const& args) {
    if (args.from.bytes() > 0) std::memcpy(args.to, args.from.data, static_cast<size_t>(args.from.bytes()));
}
template <class Real>
void HostOps<Real>::compute(Copy const& args) {
    check(args);
    compute(Upload{args.to, args.from.data});
}
template <class Real>
void HostOps<Real>::compute(CopyRows const& args) {
    check(args);
    auto const [to, to_begin, to_stride, from, from_begin, from_stride, rows, width] = args;
    int64_t const element = size_of(to.dtype);
    if (width == 0) return;
    for (int64_t row = 0; row < rows; ++row)
        std::memcpy(to.data + (to_begin + row * to_stride) * element,
                    from.data + (from_begin + row * from_stride) * element, static_cast<size_t>(width * element));
}
template <class Real>
void HostOps<Real>::compute(FillZero const& args) {
    if (args.x.bytes() > 0) std::memset(args.x.data, 0, static_cast<size_t>(args.x.bytes()));
}
template <class Real>
void HostOps<Real>::compute(FillNormal const& args) {
    host::fill_normal<Real>(args);
}
template <class Real>
void HostOps<Real>::compute(StochasticRounding const& args) {
    check(args);
    host::round_stochastically<Real>(args);
}

template <class Real>
void HostOps<Real>::compute(MatMul const& args) {
    Product const p = check(args);
    host::gemm<Real>({.c = {args.c.as<Real>(), p.n},
                      .a = {args.a.as<Real>(), args.a[1]},
                      .b = {args.b.as<Real>(), args.b[1]},
                      .m = p.m,
                      .n = p.n,
                      .k = p.k,
                      .transpose_a = args.transpose_a,
                      .transpose_b = args.transpose_b,
                      .beta = args.accumulate ? Real(1) : Real(0)});
}

template <class Real>
void HostOps<Real>::compute(Quantize const& args) {
    check(args);
    host::quantize<Real>(args);
}

template <class Real>
void HostOps<Real>::compute(QuantMatMul const& args) {
    Product const p = check(args);
    // Kept like `scratch_`, so that training steps allocate nothing.
    auto const a = static_cast<size_t>(p.m * p.k), b = static_cast<size_t>(p.n * p.k);
    if (scratch_.size() < a + b) scratch_.resize(a + b);
    host::dequantize<Real>(scratch_.data(), args.a);
    host::dequantize<Real>(scratch_.data() + a, args.b);
    host::gemm<Real>({.c = {args.c.as<Real>(), p.n},
                      .a = {scratch_.data(), p.k},
                      .b = {scratch_.data() + a, p.k},
                      .m = p.m,
                      .n = p.n,
                      .k = p.k,
                      .transpose_b = true,
                      .beta = args.accumulate ? Real(1) : Real(0)});
}

template <class Real>
void HostOps<Real>::compute(Add const& args) {
    check(args);
    host::add<Real>(args);
}
template <class Real>
void HostOps<Real>::compute(Scale const& args) {
    host::scale<Real>(args);
}

template <class Real>
void HostOps<Real>::compute(Dropout const& args) {
    check(args);
    host::dropout<Real>(args);
}

template <class Real>
void HostOps<Real>::compute(EmbeddingForward const& args) {
    check(args);
    host::embedding_forward<Real>(args);
}
template <class Real>
void HostOps<Real>::compute(EmbeddingBackward const& args) {
    check(args);
    host::embedding_backward<Real>(args);
}

template <class Real>
void HostOps<Real>::compute(RmsNormForward const& args) {
    check(args);
    host::rmsnorm_forward<Real>(args);
}
template <class Real>
void HostOps<Real>::compute(RmsNormBackward const& args) {
    check(args);
    host::rmsnorm_backward<Real>(args, scratch_);
}

template <class Real>
void HostOps<Real>::compute(RopeTable const& args) {
    check(args);
    host::rope_table<Real>(args);
}
template <class Real>
void HostOps<Real>::compute(QkvForward const& args) {
    check(args);
    host::qkv_forward<Real>(args);
}
template <class Real>
void HostOps<Real>::compute(QkvBackward const& args) {
    check(args);
    host::qkv_backward<Real>(args, scratch_);
}
template <class Real>
void HostOps<Real>::compute(KeyConvForward const& args) {
    check(args);
    host::key_conv_forward<Real>(args);
}
template <class Real>
void HostOps<Real>::compute(KeyConvBackward const& args) {
    check(args);
    host::key_conv_backward<Real>(args, scratch_);
}

template <class Real>
void HostOps<Real>::compute(SelectBlocks const& args) {
    host::select_blocks<Real>(args);
}
template <class Real>
void HostOps<Real>::compute(AttentionForward const& args) {
    host::attention_forward<Real>(args);
}
template <class Real>
void HostOps<Real>::compute(AttentionBackward const& args) {
    host::attention_backward<Real>(args);
}

template <class Real>
void HostOps<Real>::compute(NormedProduct const& args) {
    check(args);
    std::vector<std::byte> memory;
    compute_in_parts(args, main_dtype(), room_in(memory), [this](auto const& part) { compute(part); });
}
template <class Real>
void HostOps<Real>::compute(DecodeQkv const& args) {
    check(args);
    std::vector<std::byte> memory;
    compute_in_parts(args, main_dtype(), room_in(memory), [this](auto const& part) { compute(part); });
}
template <class Real>
void HostOps<Real>::compute(KvAppend const& args) {
    check(args);
    host::kv_append<Real>(args);
}
template <class Real>
void HostOps<Real>::compute(PoolBlocks const& args) {
    check(args);
    host::pool_blocks<Real>(args);
}
template <class Real>
void HostOps<Real>::compute(DecodeSelect const& args) {
    check(args);
    host::decode_select<Real>(args);
}
template <class Real>
void HostOps<Real>::compute(DecodeAttend const& args) {
    check(args);
    host::decode_attend<Real>(args);
}
template <class Real>
void HostOps<Real>::compute(DecodeSparse const& args) {
    compute(args.select);
    compute(args.attend);
}

template <class Real>
void HostOps<Real>::compute(SampleTokens const& args) {
    check(args);
    host::sample_tokens<Real>(args);
}

template <class Real>
void HostOps<Real>::compute(SwigluForward const& args) {
    check(args);
    host::swiglu_forward<Real>(args);
}
template <class Real>
void HostOps<Real>::compute(SwigluBackward const& args) {
    check(args);
    if (args.quantised_T2F.empty()) return host::swiglu_backward<Real>(args);
    if (scratch_.size() < static_cast<size_t>(args.gate_up_T2F.size()))
        scratch_.resize(static_cast<size_t>(args.gate_up_T2F.size()));
    TensorView const dgate_up(scratch_.data(), args.gate_up_T2F.shape);
    host::swiglu_backward<Real>({dgate_up, args.dy_TF, args.gate_up_T2F});
    host::quantize<Real>({.to = args.quantised_T2F, .transposed = args.transposed_2FT, .x = dgate_up});
}

template <class Real>
void HostOps<Real>::compute(SoftmaxStats const& args) {
    check(args);
    host::softmax_stats<Real>(args);
}
template <class Real>
void HostOps<Real>::compute(SoftmaxRescale const& args) {
    check(args);
    host::softmax_rescale<Real>(args);
}
template <class Real>
void HostOps<Real>::compute(CrossEntropy const& args) {
    check(args);
    host::cross_entropy<Real>(args);
}

template <class Real>
void HostOps<Real>::compute(SquaredNorm const& args) {
    *args.sum_accumulated.template as<double>() += host::squared_norm<Real>(args.x);
}
template <class Real>
void HostOps<Real>::compute(HashBits const& args) {
    check(args);
    auto& hash = *args.hash_accumulated.template as<int64_t>();
    hash = static_cast<int64_t>(static_cast<uint64_t>(hash) + host::hash_bits(args.x));  // wraps around
}
template <class Real>
void HostOps<Real>::compute(WeightedSum const& args) {
    check(args);
    *args.sum_accumulated.template as<double>() += host::weighted_sum<Real>(args.values_T, args.weights_T);
}
template <class Real>
void HostOps<Real>::compute(AdamW const& args) {
    check(args);
    host::adamw<Real>(args);
}

template class HostOps<float>;
template class HostOps<double>;

std::unique_ptr<Ops> make_host_ops(Device& host, int threads) {
    return std::make_unique<HostOps<float>>(host, threads);
}
std::unique_ptr<Ops> make_host_ops_f64(Device& host, int threads) {
    return std::make_unique<HostOps<double>>(host, threads);
}

}  // namespace perigee
