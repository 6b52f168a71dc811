// Selection by the gate and attention in one launch.
#pragma once

#include "kernels/decode/decode.h"

namespace perigee::decode {

/// Whether select_attend() supports this: Hopper, selection by head, groups of up to 16 heads, a cache of up to 512
/// blocks and up to 64 splits.
bool takes_select_attend(Select const& select, Attend const& attend, MobaOptions const& gate);

/// select(), then attend(), which may be given other blocks than select() writes: no kernel before it may write those.
/// Scores take no scratch memory.
void select_attend(Select const& select, Attend const& attend, MobaOptions const& gate);

}  // namespace perigee::decode
