#include "ops/gpu_attention.h"

#include <algorithm>

#include "base/error.h"

namespace perigee {

bool attends_all(MobaOptions const* moba, std::span<int32_t const> cu_seqlens) {
    for (size_t d = 0; moba != nullptr && d + 1 < cu_seqlens.size(); ++d)
        if (!moba_covers_all(cu_seqlens[d + 1] - cu_seqlens[d], *moba)) return false;
    return true;
}

MobaShape moba_shape(ConstView q_THK, ConstView k_TGK, std::span<int32_t const> cu_seqlens, MobaOptions const* moba,
                     MobaKernels gpu) {
    MobaShape shape{.tokens = k_TGK[0],
                    .queries = q_THK[0],
                    .documents = std::ssize(cu_seqlens) - 1,
                    .heads = q_THK[1],
                    .kv_heads = k_TGK[1],
                    .head_dim = q_THK[2],
                    .options = moba != nullptr ? *moba : MobaOptions{},
                    .gpu = gpu};
    if (moba == nullptr) {
        int32_t longest = 0;
        for (size_t d = 0; d + 1 < cu_seqlens.size(); ++d)
            longest = std::max(longest, cu_seqlens[d + 1] - cu_seqlens[d]);
        shape = as_full_attention(shape, longest);
    }
    if (std::string const refusal = moba_refusal(shape); !refusal.empty())
        fail(Category::config, "attention on the GPU: {}", refusal);
    return shape;
}

}  // namespace perigee
