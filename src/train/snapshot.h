// Which part of which tensor a rank stores in a checkpoint, over its flat buffers.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "parallel/param_spec.h"
#include "tensor/tensor.h"

namespace perigee {

/// Names of a parameter's optimizer state in a checkpoint: prefix + parameter name.
inline constexpr char const* kFirstMoment = "optimizer.m/";
inline constexpr char const* kSecondMoment = "optimizer.v/";

/// What of `parts` lies in `ranges` of the flat buffer, tensor by tensor, each named prefix + parameter
/// name.
std::vector<StoredTensor> stored_tensors(ParamLayout const& layout, std::vector<FlatPart> const& parts,
                                         std::string const& prefix, std::vector<FlatRange> const& ranges);

}  // namespace perigee
