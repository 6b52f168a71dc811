// attend_chosen and attend_own (stages.h) by kernels for Hopper GPUs; head sizes 64 and 128.
#pragma once

#include "kernels/moba/cuda/stages.h"

namespace perigee::moba {

void hopper_attend_chosen(Stage const& stage, Wave const& wave);
void hopper_attend_own(Stage const& stage, Wave const& wave, bf16* o, float* lse);

}  // namespace perigee::moba
