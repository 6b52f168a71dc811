// Checks of shapes and dtypes that every implementation of Ops makes before it touches memory. All throw
// Category::internal, naming the tensor, what it is and what was expected.
#pragma once

#include "ops/ops.h"

namespace perigee {

void check(Copy const& args);
void check(CopyRows const& args);
void check(Add const& args);
/// Extents of c [m, n] = op(a) [m, k] op(b) [k, n].
struct Product {
    int64_t m, n, k;
};
Product check(MatMul const& args);
void check(Quantize const& args);
Product check(QuantMatMul const& args);
void check(RmsNormForward const& args);
void check(RmsNormBackward const& args);
void check(RopeTable const& args);
void check(QkvForward const& args);
void check(QkvBackward const& args);
void check(SwigluForward const& args);
void check(SwigluBackward const& args);
void check(SoftmaxStats const& args);
void check(SoftmaxRescale const& args);
void check(CrossEntropy const& args);
void check(StochasticRounding const& args);
void check(Dropout const& args);
void check(AdamW const& args);
void check(EmbeddingForward const& args);
void check(EmbeddingBackward const& args);
void check(AttentionForward const& args);
void check(AttentionBackward const& args);
void check(KeyConvForward const& args);
void check(KeyConvBackward const& args);
void check(SelectBlocks const& args);
void check(NormedProduct const& args);
void check(DecodeQkv const& args);
void check(KvAppend const& args);
void check(PoolBlocks const& args);
void check(DecodeSelect const& args);
void check(DecodeAttend const& args);
void check(SampleTokens const& args);
void check(HashBits const& args);
void check(WeightedSum const& args);

}  // namespace perigee
