// attend_selected and attend_local (stages.h) for sm90; head sizes 64 and 128.
#pragma once

#include "kernels/block_sparse_attention/stages.h"

namespace perigee::block_sparse {

void attend_selected_sm90(Stage const& stage, Pass const& pass);
void attend_local_sm90(Stage const& stage, Pass const& pass, bf16* o, float* lse);

}  // namespace perigee::block_sparse
