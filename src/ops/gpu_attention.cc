#include "ops/gpu_attention.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace perigee {

namespace {

constexpr uint64_t kFewDocuments = 16;

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

}  // namespace

bool goes_to_cudnn(AttentionForward const& args) { return suits_cudnn(args); }

bool goes_to_cudnn(AttentionBackward const& args, bool deterministic) {
    return suits_cudnn(args) && !args.add_to_dkv && !deterministic;
}

MobaShape moba_shape(Shape const& q_THK, Shape const& k_TGK, std::span<int32_t const> cu_seqlens,
                     MobaOptions const* moba, MobaKernels gpu) {
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

int64_t gpu_moba_lists_size(Shape const& q_THK, Shape const& k_TGK, std::span<int32_t const> cu_seqlens,
                            MobaOptions const& moba) {
    MobaShape shape = moba_shape(q_THK, k_TGK, cu_seqlens, &moba, MobaKernels::mma);
    // A pack of a few documents more takes no other memory.
    auto const documents = static_cast<uint64_t>(shape.documents);
    shape.documents = static_cast<int64_t>(std::bit_ceil(std::max(documents, kFewDocuments)));
    return static_cast<int64_t>(moba_lists_bytes(shape) / sizeof(int32_t));
}

bool has_lists(AttentionBackward const& args) { return !args.lists_L.empty() && !suits_cudnn(args); }

}  // namespace perigee
