#include "ops/ops.h"

namespace perigee {

// Here and not in the class: a source that calls them need not make the variant of all operations.
void Ops::upload(TensorView to, void const* from) { run(Upload{to, from}); }
void Ops::download(void* to, ConstView from) { run(Download{to, from}); }
void Ops::copy(TensorView to, ConstView from) { run(Copy{to, from}); }
void Ops::copy_rows(CopyRows const& args) { run(args); }
void Ops::fill_zero(TensorView x) { run(FillZero{x}); }
void Ops::fill_normal(FillNormal const& args) { run(args); }
void Ops::round_stochastically(StochasticRounding const& args) { run(args); }
void Ops::matmul(MatMul const& args) { run(args); }
void Ops::quantize(Quantize const& args) { run(args); }
void Ops::matmul8(QuantMatMul const& args) { run(args); }
void Ops::add(TensorView accumulated, ConstView x) { run(Add{accumulated, x}); }
void Ops::scale(TensorView x, double factor) { run(Scale{x, factor}); }
void Ops::dropout(Dropout const& args) { run(args); }
void Ops::embedding_forward(EmbeddingForward const& args) { run(args); }
void Ops::embedding_backward(EmbeddingBackward const& args) { run(args); }
void Ops::rmsnorm_forward(RmsNormForward const& args) { run(args); }
void Ops::rmsnorm_backward(RmsNormBackward const& args) { run(args); }
void Ops::rope_table(RopeTable const& args) { run(args); }
void Ops::qkv_forward(QkvForward const& args) { run(args); }
void Ops::qkv_backward(QkvBackward const& args) { run(args); }
void Ops::key_conv_forward(KeyConvForward const& args) { run(args); }
void Ops::key_conv_backward(KeyConvBackward const& args) { run(args); }
void Ops::select_blocks(SelectBlocks const& args) { run(args); }
void Ops::attention_forward(AttentionForward const& args) { run(args); }
void Ops::attention_backward(AttentionBackward const& args) { run(args); }
void Ops::normed_product(NormedProduct const& args) { run(args); }
void Ops::decode_qkv(DecodeQkv const& args) { run(args); }
void Ops::kv_append(KvAppend const& args) { run(args); }
void Ops::pool_blocks(PoolBlocks const& args) { run(args); }
void Ops::decode_select(DecodeSelect const& args) { run(args); }
void Ops::decode_attend(DecodeAttend const& args) { run(args); }
void Ops::decode_sparse(DecodeSparse const& args) { run(args); }
void Ops::sample_tokens(SampleTokens const& args) { run(args); }
void Ops::swiglu_forward(TensorView y_TF, ConstView gate_up_T2F) { run(SwigluForward{y_TF, gate_up_T2F}); }
void Ops::swiglu_backward(SwigluBackward const& args) { run(args); }
void Ops::softmax_stats(SoftmaxStats const& args) { run(args); }
void Ops::softmax_rescale(SoftmaxRescale const& args) { run(args); }
void Ops::cross_entropy(CrossEntropy const& args) { run(args); }
void Ops::squared_norm(TensorView sum_accumulated, ConstView x) { run(SquaredNorm{sum_accumulated, x}); }
void Ops::hash_bits(TensorView hash_accumulated, ConstView x) { run(HashBits{hash_accumulated, x}); }
void Ops::weighted_sum(WeightedSum const& args) { run(args); }
void Ops::adamw(AdamW const& args) { run(args); }

}  // namespace perigee
