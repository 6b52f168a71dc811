// What an attention is to the kernels of a GPU. Pure arithmetic, needs no CUDA: `perigee check` asks it too.
#pragma once

#include <cstdint>
#include <deque>
#include <span>

#include "kernels/block_sparse_attention/plan.h"
#include "kernels/dense_attention/plan.h"
#include "kernels/moba_gate/plan.h"
#include "ops/ops.h"

namespace perigee {

/// Whether this build leaves to cuDNN what it takes. A build without CUDA plans for one with cuDNN.
bool build_uses_cudnn();

/// Whose kernels compute an attention: those of kernels/block_sparse_attention, which take everything; cuDNN's and
/// those of kernels/dense_attention, which take full attention.
enum class AttentionBackend { block_sparse, cudnn, dense };

/// Attention of a whole pack that leaves out no key (full, or documents of at most top_k blocks) goes to
/// kernels/dense_attention on Hopper for head sizes 64, 96 and 128, else to cuDNN, if built in, for multiples of 8 up
/// to 256. The block-sparse kernels take the rest, a backward with `add_to_dkv`, and cuDNN's if `deterministic`.
AttentionBackend attention_backend(AttentionForward const& args, KernelArch arch);
AttentionBackend attention_backend(AttentionBackward const& args, KernelArch arch, bool deterministic);
DenseAttentionShape dense_shape(Shape const& q_THK, Shape const& k_TGK, std::span<int32_t const> cu_seqlens,
                                bool deterministic);

/// Bytes of scratch memory of cuDNN's backward, as version 9.14 takes them on Hopper: dQ in fp32, dK and dV of every
/// query head where heads share keys, and two numbers per row.
size_t cudnn_backward_scratch(AttentionBackward const& args);

/// The plans of the own attention kernels, each made once for a shape: the layers and micro-batches that come later are
/// handed the same one. Full attention is one block per document. References hold until the next call.
class AttentionPlans {
  public:
    /// `budget`: bytes of scratch memory for plan_attention.
    AttentionPlans(KernelArch arch, bool deterministic, size_t budget)
        : arch_(arch), deterministic_(deterministic), budget_(budget) {}

    // Throw Category::config for what the kernels do not take.
    BlockSparsePlan const& of(AttentionForward const& args);
    BlockSparsePlan const& of(AttentionBackward const& args);
    MobaGatePlan const& of(SelectBlocks const& args);  ///< with a selection by the gate
    KernelArch arch() const { return arch_; }

  private:
    BlockSparsePlan const& attention(BlockSparseShape shape, AttentionTask task);

    KernelArch arch_;
    bool deterministic_;
    size_t budget_;
    // Latest first.
    std::deque<BlockSparsePlan> attention_;
    std::deque<MobaGatePlan> gate_;
};

/// Ops::routing_size on a GPU.
int64_t gpu_routing_size(Shape const& q_THK, Shape const& k_TGK, std::span<int32_t const> cu_seqlens,
                         BlockBudget const& budget);

/// The routing table that goes from the forward to the backward; empty for full attention.
inline TensorView routing_of(auto const& args) {
    auto const* const sparse = std::get_if<BlockSparse>(&args.attended);
    return sparse != nullptr ? sparse->routing_L : TensorView();
}

/// Whether the forward of the same tensors has left its routing: given memory for it, and
/// AttentionBackend::block_sparse.
bool forward_left_routing(AttentionBackward const& args, KernelArch arch);

}  // namespace perigee
