#include "ops/gpu_attention.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "kernels/limits.h"

namespace perigee {

namespace {

// The routing table has room for kFewDocuments, or for one document per kBlocksOfDocument blocks of the pack if that is
// more.
constexpr int64_t kFewDocuments = 16, kBlocksOfDocument = 4;

/// Full attention by rule, or because no document has more blocks than a query selects.
bool attends_all(Attended const& attended, std::span<int32_t const> cu_seqlens) {
    auto const* const sparse = std::get_if<BlockSparse>(&attended);
    for (size_t d = 1; sparse != nullptr && d < cu_seqlens.size(); ++d)
        if (!moba_covers_all(cu_seqlens[d] - cu_seqlens[d - 1], sparse->budget.block_size, sparse->budget.top_k))
            return false;
    return true;
}

/// Full attention of all queries.
bool is_dense(auto const& args) {
    return attends_all(args.attended, args.cu_seqlens) && args.q_THK[0] == args.k_TGK[0];
}
/// By kernels/dense_attention, which were measured faster than the others at these head sizes.
bool takes_dense(auto const& args, KernelArch arch) {
    int64_t const head_dim = args.q_THK[2];
    return arch == KernelArch::sm90 && is_dense(args) && (head_dim == 64 || head_dim == 96 || head_dim == 128);
}
bool suits_cudnn(auto const& args) {
    int64_t const head_dim = args.q_THK[2];
    return build_uses_cudnn() && is_dense(args) && head_dim % 8 == 0 && head_dim <= 256;
}
BlockSparseShape describe(Shape const& q_THK, Shape const& k_TGK, std::span<int32_t const> cu_seqlens,
                          BlockBudget const& budget, KernelArch arch) {
    return {.tokens = k_TGK[0],
            .queries = q_THK[0],
            .documents = std::ssize(cu_seqlens) - 1,
            .heads = q_THK[1],
            .kv_heads = k_TGK[1],
            .head_dim = q_THK[2],
            .block_size = budget.block_size,
            .top_k = budget.top_k,
            .arch = arch};
}

BlockSparseShape checked(BlockSparseShape const& shape) {
    if (std::string const refusal = attention_refusal(shape); !refusal.empty())
        fail(Category::config, "attention on the GPU: {}", refusal);
    return shape;
}

BlockSparseShape attention_shape(auto const& args, KernelArch arch) {
    auto const* const sparse = std::get_if<BlockSparse>(&args.attended);
    BlockBudget const budget = sparse != nullptr ? sparse->budget : BlockBudget{.block_size = 1, .top_k = 1};
    BlockSparseShape const shape = describe(args.q_THK.shape, args.k_TGK.shape, args.cu_seqlens, budget, arch);
    if (sparse != nullptr) return checked(shape);
    int32_t longest = 0;
    for (size_t d = 1; d < args.cu_seqlens.size(); ++d)
        longest = std::max(longest, args.cu_seqlens[d] - args.cu_seqlens[d - 1]);
    return checked(as_full_attention(shape, longest));
}

/// Warns of a plan with so many passes that launches and sums carried between them take long.
BlockSparsePlan const& with_warning(BlockSparsePlan const& plan, size_t budget) {
    constexpr int64_t kManyPasses = 32;
    if (plan.passes() <= kManyPasses) return plan;
    size_t enough = budget;
    int64_t passes = plan.passes();
    for (int doublings = 0; doublings < 5 && passes > kManyPasses; ++doublings)
        passes = plan_attention(plan.shape, plan.task, enough *= 2).passes();
    std::string const warning =
        fmt::format("MoBA's {} takes {} passes, which is slow; with train.moba_scratch_mib={} it takes {}",
                    plan.task == AttentionTask::forward ? "forward" : "backward", plan.passes(), enough >> 20, passes);
    static std::mutex mutex;
    static std::set<std::string> given;  // `perigee check` makes the same plan for many layouts
    std::scoped_lock const lock(mutex);
    if (given.insert(warning).second) log::warn("{}", warning);
    return plan;
}

constexpr size_t kPlans = 64;  // shapes differ in their number of documents

template <class Plan>
Plan const& known_or_made(std::deque<Plan>& plans, auto const& fits, auto const& make) {
    auto const known = std::ranges::find_if(plans, fits);
    if (known != plans.end()) return *known;
    plans.push_front(make());
    if (plans.size() > kPlans) plans.pop_back();
    return plans.front();
}

}  // namespace

DenseAttentionShape dense_shape(Shape const& q_THK, Shape const& k_TGK, std::span<int32_t const> cu_seqlens,
                                bool deterministic) {
    return {.tokens = k_TGK[0],
            .documents = std::ssize(cu_seqlens) - 1,
            .heads = q_THK[1],
            .kv_heads = k_TGK[1],
            .head_dim = q_THK[2],
            .deterministic = deterministic};
}

AttentionBackend attention_backend(AttentionForward const& args, KernelArch arch) {
    if (takes_dense(args, arch)) return AttentionBackend::dense;
    return suits_cudnn(args) ? AttentionBackend::cudnn : AttentionBackend::block_sparse;
}

AttentionBackend attention_backend(AttentionBackward const& args, KernelArch arch, bool deterministic) {
    if (args.add_to_dkv) return AttentionBackend::block_sparse;
    if (takes_dense(args, arch)) return AttentionBackend::dense;
    return suits_cudnn(args) && !deterministic ? AttentionBackend::cudnn : AttentionBackend::block_sparse;
}

size_t cudnn_backward_scratch(AttentionBackward const& args) {
    int64_t const rows = args.q_THK[0] * args.q_THK[1], head_dim = args.q_THK[2];
    bool const shares_keys = args.q_THK[1] != args.k_TGK[1];
    return static_cast<size_t>(rows * (head_dim * (shares_keys ? 8 : 4) + 8));
}

BlockSparsePlan const& AttentionPlans::attention(BlockSparseShape shape, AttentionTask task) {
    shape.deterministic = deterministic_;
    return known_or_made(
        attention_, [&](BlockSparsePlan const& plan) { return plan.task == task && plan.shape == shape; },
        [&] { return with_warning(plan_attention(shape, task, budget_), budget_); });
}

BlockSparsePlan const& AttentionPlans::of(AttentionForward const& args) {
    return attention(attention_shape(args, arch_), AttentionTask::forward);
}

BlockSparsePlan const& AttentionPlans::of(AttentionBackward const& args) {
    if (deterministic_ && suits_cudnn(args) && !kernels::attention_takes_head(args.q_THK[2]))
        fail(Category::config,
             "heads of {} values: with `deterministic: true` the GPU attends with 32, 64, 96 or 128; without it, cuDNN "
             "also takes multiples of 8 up to 256",
             args.q_THK[2]);
    return attention(attention_shape(args, arch_), AttentionTask::backward);
}

MobaGatePlan const& AttentionPlans::of(SelectBlocks const& args) {
    auto const& gate = std::get<MobaOptions>(args.selection);
    BlockBudget const budget{.block_size = gate.block_size, .top_k = gate.top_k};
    auto const shape = checked(describe(args.q_THK.shape, args.k_TGK.shape, args.cu_seqlens, budget, arch_));
    return known_or_made(
        gate_, [&](MobaGatePlan const& plan) { return plan.shape == shape && plan.options == gate; },
        [&] { return plan_moba_gate(shape, gate); });
}

int64_t gpu_routing_size(Shape const& q_THK, Shape const& k_TGK, std::span<int32_t const> cu_seqlens,
                         BlockBudget const& budget) {
    BlockSparseShape shape = describe(q_THK, k_TGK, cu_seqlens, budget, KernelArch::sm80);
    int64_t const room =
        std::max(shape.tokens / (kBlocksOfDocument * std::max<int64_t>(budget.block_size, 1)), kFewDocuments);
    if (shape.documents > room) return 0;
    shape.documents = room;
    if (!attention_refusal(shape).empty()) return 0;
    return static_cast<int64_t>(routing_bytes(shape) / sizeof(int32_t));
}

bool forward_left_routing(AttentionBackward const& args, KernelArch arch) {
    bool const block_sparse = !suits_cudnn(args) && !takes_dense(args, arch);
    return !routing_of(args).empty() && block_sparse;  // as attention_backend of the forward
}

}  // namespace perigee
