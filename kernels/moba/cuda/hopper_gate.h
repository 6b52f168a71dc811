// choose_blocks (stages.h) by a kernel for Hopper GPUs; see choose_kernels in moba_plan.cc for what it takes.
#pragma once

#include "kernels/moba/cuda/stages.h"

namespace perigee::moba {

void hopper_choose_blocks(Stage const& stage, int32_t* chosen);

}  // namespace perigee::moba
