#include "kernels/moba/cuda/moba_cuda.h"

#include "kernels/common/built_for.h"
#include "kernels/moba/cuda/stages.h"

namespace perigee {

MobaKernels moba_cuda_kernels() {
    return kernels::built_for() == kernels::BuiltFor::hopper ? MobaKernels::hopper : MobaKernels::mma;
}

void moba_cuda_select(MobaProblem const& problem, int32_t* chosen) {
    if (problem.shape.queries == 0 || problem.shape.slots() == 0) return;
    moba::Stage const stage = moba::make_stage(problem, MobaTask::select);
    moba::build_block_table(stage);
    moba::pool_keys(stage);
    moba::choose_blocks(stage, chosen);
}

void moba_cuda_forward(MobaProblem const& problem, bf16* o, float* lse) {
    if (problem.shape.queries == 0) return;
    moba::Stage const stage = moba::make_stage(problem, MobaTask::forward);
    bool const routed = problem.shape.slots() > 0;
    moba::build_block_table(stage);
    if (routed) moba::build_lists(stage);
    for (int64_t i = 0; i < stage.plan.waves(); ++i) {
        moba::Wave const wave = moba::wave_of(stage.plan, i);
        if (routed) {
            moba::plan_tiles(stage, wave);
            moba::attend_chosen(stage, wave);
        }
        moba::attend_own(stage, wave, o, lse);
    }
}

void moba_cuda_backward(MobaProblem const& problem, MobaGradients const& gradients) {
    if (problem.shape.tokens == 0) return;
    moba::Stage const stage = moba::make_stage(problem, MobaTask::backward);
    bool const routed = problem.shape.slots() > 0 && problem.shape.queries > 0;
    // Of no queries there has been no forward.
    bool const listed = problem.lists != nullptr && problem.shape.queries > 0;
    if (!listed) moba::build_block_table(stage);
    moba::row_products(stage, gradients);
    if (routed && !listed) moba::build_lists(stage);
    bool const fused = stage.plan.kernels == MobaKernels::hopper;
    if (!fused) moba::key_gradients(stage, gradients);
    for (int64_t i = 0; i < stage.plan.waves(); ++i) {
        moba::Wave const wave = moba::wave_of(stage.plan, i);
        if (fused) {
            moba::plan_items(stage, wave);
            moba::fused_gradients(stage, wave, gradients);
            moba::sum_gradients(stage, wave, gradients);
            continue;
        }
        if (routed) {
            moba::plan_tiles(stage, wave);
            moba::query_gradients_chosen(stage, wave, gradients);
        }
        moba::query_gradients_own(stage, wave, gradients);
    }
}

}  // namespace perigee
