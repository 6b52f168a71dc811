#include "kernels/c_interface/perigee_moba.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/error.h"
#include "kernels/block_sparse_attention/block_sparse_attention.h"
#include "kernels/moba_gate/gate.h"

namespace perigee {
namespace {

void say(char* message, std::string const& text) {
    if (message == nullptr) return;
    size_t const length = std::min<size_t>(text.size(), PERIGEE_MOBA_MESSAGE_BYTES - 1);
    std::memcpy(message, text.data(), length);
    message[length] = '\0';
}

/// No exception may pass into C.
template <class Body>
int guarded(char* message, Body&& body) {
    try {
        body();
        say(message, "");
        return PERIGEE_MOBA_OK;
    } catch (Error const& error) {
        say(message, error.what());
        return error.category() == Category::config ? PERIGEE_MOBA_REFUSED : PERIGEE_MOBA_FAILED;
    } catch (std::exception const& error) {
        say(message, error.what());
        return PERIGEE_MOBA_FAILED;
    }
}

void require(void const* pointer, char const* name, size_t alignment = 1) {
    if (pointer == nullptr) fail(Category::config, "{} is null", name);
    if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0)
        fail(Category::config, "{} is not aligned to {} bytes", name, alignment);
}
constexpr size_t kOfTensors = 16, kOfScratch = 256;  ///< alignments

/// Throws Category::config for a shape that the kernels of no GPU take.
BlockSparseShape shape_of(perigee_moba_shape const* c) {
    require(c, "shape");
    BlockSparseShape const shape{.tokens = c->tokens,
                                 .queries = c->tokens,
                                 .documents = c->documents,
                                 .heads = c->heads,
                                 .kv_heads = c->kv_heads,
                                 .head_dim = c->head_dim,
                                 .block_size = c->block_size,
                                 .top_k = c->top_k,
                                 .deterministic = c->deterministic != 0};
    if (std::string const refusal = attention_refusal(shape); !refusal.empty()) fail(Category::config, "{}", refusal);
    return shape;
}

/// With the kernels of the current GPU. The last check, so that wrong arguments are named without a GPU.
BlockSparseShape on_this_gpu(BlockSparseShape shape) {
    shape.arch = kernel_arch();
    return shape;
}

/// Partial results may take kAttentionScratchBytes. The routing and the backward's row statistics come on top, as their
/// size depends on the shape alone.
BlockSparsePlan plan_of(BlockSparseShape const& shape, AttentionTask task) {
    size_t const row_stats = static_cast<size_t>(shape.queries * shape.heads) * 4 * sizeof(float);
    try {
        return plan_attention(shape, task, kAttentionScratchBytes + routing_bytes(shape) + row_stats);
    } catch (Error const& error) {
        if (error.category() != Category::config) throw;
        fail(Category::config, "attention of {} needs more than {} GiB of scratch memory for partial results",
             to_string(shape), kAttentionScratchBytes >> 30);
    }
}

MobaGatePlan gate_plan(perigee_moba_shape const& c, BlockSparseShape const& shape) {
    return plan_moba_gate(shape, {.block_size = c.block_size,
                                  .top_k = c.top_k,
                                  .force_previous = c.force_previous != 0,
                                  .selection = c.per_group != 0 ? MobaSelection::per_group : MobaSelection::per_head});
}

/// What the gate and attention both take.
void require_inputs(perigee_moba_problem const* c, int64_t slots) {
    require(c, "problem");
    require(c->cu_seqlens, "cu_seqlens", sizeof(int32_t));
    require(c->q, "q", kOfTensors);
    require(c->k, "k", kOfTensors);
    if (slots > 0) require(c->chosen, "chosen", kOfTensors);
    require(c->scratch, "scratch", kOfScratch);
}

BlockSparseProblem attention_problem(perigee_moba_problem const* c, int64_t slots) {
    require_inputs(c, slots);
    require(c->v, "v", kOfTensors);
    if (c->routing != nullptr) require(c->routing, "routing", kOfScratch);
    if (!(c->scale > 0) || !std::isfinite(c->scale))
        fail(Category::config, "scale is {}; a positive number was expected", c->scale);
    return {.cu_seqlens = c->cu_seqlens,
            .scale = c->scale,
            .q = static_cast<bf16 const*>(c->q),
            .k = static_cast<bf16 const*>(c->k),
            .v = static_cast<bf16 const*>(c->v),
            .chosen = c->chosen,
            .routing = c->routing,
            .scratch = c->scratch,
            .stream = static_cast<cudaStream_t>(c->stream)};
}

}  // namespace
}  // namespace perigee

using namespace perigee;

int perigee_moba_get_sizes(perigee_moba_shape const* shape, perigee_moba_sizes* sizes, char* message) {
    return guarded(message, [&] {
        require(sizes, "sizes");
        BlockSparseShape const checked_shape = on_this_gpu(shape_of(shape));
        sizes->scratch_bytes = std::max({gate_plan(*shape, checked_shape).scratch_bytes,
                                         plan_of(checked_shape, AttentionTask::forward).scratch_bytes,
                                         plan_of(checked_shape, AttentionTask::backward).scratch_bytes});
        sizes->routing_bytes = routing_bytes(checked_shape);
        sizes->chosen_count = static_cast<size_t>(shape->tokens * shape->heads * checked_shape.slots());
    });
}

int perigee_moba_select(perigee_moba_shape const* shape, perigee_moba_problem const* problem, char* message) {
    return guarded(message, [&] {
        BlockSparseShape const checked_shape = shape_of(shape);
        require_inputs(problem, checked_shape.slots());
        if (checked_shape.slots() == 0) return;
        moba_gate_select(gate_plan(*shape, on_this_gpu(checked_shape)),
                         {.cu_seqlens = problem->cu_seqlens,
                          .q = static_cast<bf16 const*>(problem->q),
                          .k = static_cast<bf16 const*>(problem->k),
                          .scratch = problem->scratch,
                          .stream = static_cast<cudaStream_t>(problem->stream)},
                         problem->chosen);
    });
}

int perigee_moba_forward(perigee_moba_shape const* shape, perigee_moba_problem const* problem, void* o, float* lse,
                         char* message) {
    return guarded(message, [&] {
        BlockSparseShape const checked_shape = shape_of(shape);
        BlockSparseProblem const attention = attention_problem(problem, checked_shape.slots());
        require(o, "o", kOfTensors);
        require(lse, "lse", kOfTensors);
        block_sparse_forward(plan_of(on_this_gpu(checked_shape), AttentionTask::forward), attention,
                             static_cast<bf16*>(o), lse);
    });
}

int perigee_moba_backward(perigee_moba_shape const* shape, perigee_moba_problem const* problem,
                          perigee_moba_gradients const* gradients, char* message) {
    return guarded(message, [&] {
        BlockSparseShape const checked_shape = shape_of(shape);
        BlockSparseProblem const attention = attention_problem(problem, checked_shape.slots());
        require(gradients, "gradients");
        for (auto const& [pointer, name] : {std::pair<void const*, char const*>{gradients->d_o, "d_o"},
                                            {gradients->o, "o"},
                                            {gradients->lse, "lse"},
                                            {gradients->dq, "dq"},
                                            {gradients->dk, "dk"},
                                            {gradients->dv, "dv"}})
            require(pointer, name, kOfTensors);
        block_sparse_backward(plan_of(on_this_gpu(checked_shape), AttentionTask::backward), attention,
                              {.d_o = static_cast<bf16 const*>(gradients->d_o),
                               .o = static_cast<bf16 const*>(gradients->o),
                               .lse = gradients->lse,
                               .dq = static_cast<bf16*>(gradients->dq),
                               .dk = static_cast<bf16*>(gradients->dk),
                               .dv = static_cast<bf16*>(gradients->dv)});
    });
}
