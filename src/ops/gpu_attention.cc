#include "ops/gpu_attention.h"

#include <algorithm>

#include "base/error.h"

namespace perigee {

namespace {

// Lists have room for so many documents, or for those that are of so many blocks on average.
constexpr int64_t kFewDocuments = 16, kBlocksOfDocument = 4;

/// With so few blocks in every document, MoBA is full attention; so is no `moba`.
bool attends_all(MobaOptions const* moba, std::span<int32_t const> cu_seqlens) {
    for (size_t d = 0; moba != nullptr && d + 1 < cu_seqlens.size(); ++d)
        if (!moba_covers_all(cu_seqlens[d + 1] - cu_seqlens[d], *moba)) return false;
    return true;
}

bool suits_cudnn(auto const& args) {
    int64_t const head_dim = args.q_THK[2];
    return build_uses_cudnn() && attends_all(args.moba, args.cu_seqlens) && args.q_THK[0] == args.k_TGK[0] &&
           head_dim % 8 == 0 && head_dim <= 256;
}

MobaShape describe(Shape const& q_THK, Shape const& k_TGK, std::span<int32_t const> cu_seqlens, MobaOptions const* moba,
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
    return shape;
}

}  // namespace

bool goes_to_cudnn(AttentionForward const& args) { return suits_cudnn(args); }

bool goes_to_cudnn(AttentionBackward const& args, bool deterministic) {
    return suits_cudnn(args) && !args.add_to_dkv && !deterministic;
}

MobaShape moba_shape(Shape const& q_THK, Shape const& k_TGK, std::span<int32_t const> cu_seqlens,
                     MobaOptions const* moba, MobaKernels gpu) {
    MobaShape const shape = describe(q_THK, k_TGK, cu_seqlens, moba, gpu);
    if (std::string const refusal = moba_refusal(shape); !refusal.empty())
        fail(Category::config, "attention on the GPU: {}", refusal);
    return shape;
}

int64_t gpu_moba_lists_size(Shape const& q_THK, Shape const& k_TGK, std::span<int32_t const> cu_seqlens,
                            MobaOptions const& moba) {
    MobaShape shape = describe(q_THK, k_TGK, cu_seqlens, &moba, MobaKernels::mma);
    int64_t const room =
        std::max(shape.tokens / (kBlocksOfDocument * std::max<int64_t>(moba.block_size, 1)), kFewDocuments);
    if (shape.documents > room) return 0;
    shape.documents = room;
    if (!moba_refusal(shape).empty()) return 0;
    return static_cast<int64_t>(moba_lists_bytes(shape) / sizeof(int32_t));
}

bool forward_left_lists(AttentionBackward const& args) {
    return !args.lists_L.empty() && !suits_cudnn(args);  // as goes_to_cudnn of the forward
}

}  // namespace perigee
