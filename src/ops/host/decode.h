// Decoding from a cache of pages on the CPU. Each sequence's result has the same bits whatever its pages, the other
// sequences and the number of threads.
#pragma once

#include "ops/ops.h"

namespace perigee::host {

/// As in ops/decode_operations.h, on already checked arguments, in Real = float or double.
template <class Real>
void kv_append(KvAppend const& args);
template <class Real>
void pool_blocks(PoolBlocks const& args);
template <class Real>
void decode_select(DecodeSelect const& args);
template <class Real>
void decode_attend(DecodeAttend const& args);
template <class Real>
void sample_tokens(SampleTokens const& args);

}  // namespace perigee::host
