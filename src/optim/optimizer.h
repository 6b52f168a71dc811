// AdamW over the flat parameter buffer, the learning-rate schedule, and the guard that keeps non-finite steps away from
// the weights.
#pragma once

#include <cstdint>
#include <vector>

#include "base/schema.h"
#include "ops/ops.h"
#include "parallel/buckets.h"
#include "parallel/mesh.h"
#include "parallel/param_spec.h"

namespace perigee {

struct OptimizerOptions {
    double lr = 3e-4;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
    double max_grad_norm = 1.0;  ///< 0 switches clipping off
};
void describe(Schema& schema, OptimizerOptions& options);

enum class Decay { cosine, linear, wsd, constant };

struct ScheduleOptions {
    int64_t warmup_steps = 0;
    Decay decay = Decay::cosine;
    double min_lr_ratio = 0.1;
    int64_t decay_steps = 0;  ///< wsd: length of the final decay; 0 takes a fifth of the run
};
void describe(Schema& schema, ScheduleOptions& options);

/// Learning rate of a step (0-based) of a run of `total_steps`: a pure function, so resume needs no state.
/// Warm-up: peak (step + 1) / warmup_steps. Then the fall from the peak, reaching min_lr_ratio peak at step
/// total_steps.
double learning_rate(ScheduleOptions const& options, double peak, int64_t step, int64_t total_steps);

class AdamWOptimizer {
  public:
    /// Keeps moments for ownership.updated alone.
    AdamWOptimizer(OptimizerOptions const& options, ParamLayout const& layout, Ownership ownership, Ops& ops);

    /// Global norm over all parameters, each counted once over the mesh, by the rank that owns it.
    double global_norm(TensorView grads, Mesh const& mesh);
    /// One update of ownership.updated in flat buffers; `applied_updates` counts earlier ones. Scales gradients by
    /// max_grad_norm / norm where `norm` is larger; a norm that is not finite is Category::internal, and nothing has
    /// changed.
    void update(TensorView weights, TensorView grads, double norm, double lr, int64_t applied_updates);

    /// f32 (f64 with fp64 Ops), one part per range of ownership.updated, for checkpoints.
    std::vector<FlatPart> first_moment() const { return parts(m_); }
    std::vector<FlatPart> second_moment() const { return parts(v_); }

  private:
    std::vector<FlatPart> parts(TensorView packed) const;

    OptimizerOptions options_;
    ParamLayout const* layout_;
    Ownership ownership_;
    Ops* ops_;
    Buffer m_memory_, v_memory_;
    TensorView m_, v_;  ///< the updated ranges one after the other
};

}  // namespace perigee
