// Which part of which tensor a rank stores in a checkpoint, over its flat buffers.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "parallel/param_spec.h"
#include "tensor/tensor.h"

namespace perigee {

/// Elements [begin, end) of a flat parameter buffer.
using FlatRange = std::pair<int64_t, int64_t>;
FlatRange whole_range(ParamLayout const& layout);
/// Part `rank` of `size` nearly equal parts: replicas share the writing.
FlatRange share(ParamLayout const& layout, int rank, int size);

/// Names of a parameter's optimizer state in a checkpoint: prefix + parameter name.
inline constexpr char const* kFirstMoment = "optimizer.m/";
inline constexpr char const* kSecondMoment = "optimizer.v/";

/// The tensors of `flat` (host memory, laid out by `layout`) that meet `range`, each named prefix + parameter name.
std::vector<StoredTensor> stored_tensors(ParamLayout const& layout, TensorView flat, std::string const& prefix,
                                         FlatRange range);

}  // namespace perigee
