// What an attention is to the kernels of a GPU. Pure arithmetic, needs no CUDA: `perigee check` asks it too.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/moba/moba_plan.h"
#include "tensor/tensor.h"

namespace perigee {

/// With so few blocks in every document, MoBA is full attention; so is no `moba`.
bool attends_all(MobaOptions const* moba, std::span<int32_t const> cu_seqlens);

/// The problem for MoBA's kernels; without `moba`, one block per document. Throws Category::config where they do not
/// take it.
MobaShape moba_shape(ConstView q_THK, ConstView k_TGK, std::span<int32_t const> cu_seqlens, MobaOptions const* moba,
                     MobaKernels gpu);

}  // namespace perigee
