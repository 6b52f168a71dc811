// AdamW over the flat parameter buffer, and the learning-rate schedule.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/schema.h"
#include "ops/ops.h"
#include "optim/moments.h"
#include "parallel/buckets.h"
#include "parallel/mesh.h"
#include "parallel/param_spec.h"

namespace perigee {

enum class MomentPrecision { fp32, bf16 };

struct OptimizerOptions {
    double lr = 3e-4;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
    double max_grad_norm = 1.0;  ///< 0 switches clipping off
    bool stochastic_rounding = false;
    bool offload = false;  ///< moments wait in memory of the host
    MomentPrecision moments = MomentPrecision::fp32;
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
    /// Keeps moments for ownership.updated alone, and its own weights there where the model computes with rounded ones.
    /// `weights` are the model's, in one part per range of ownership.updated, as are all gradients below. Random
    /// numbers follow from `seed`.
    AdamWOptimizer(OptimizerOptions const& options, ParamLayout const& layout, Ownership ownership,
                   std::vector<FlatPart> weights, Ops& ops, uint64_t seed = 0);

    /// sum (f64 [1] on the device) += squares of the gradients of ownership.owned, so that over the mesh each is
    /// counted once.
    void add_squares(TensorView sum, std::vector<FlatPart> const& grads);
    /// One update, of which the caller asks for each unit once.
    struct Update {
        double norm = 0;  ///< of all gradients: scaled by max_grad_norm / norm where it is larger
        double lr = 0;
        int64_t applied = 0;  ///< updates before this one
    };
    /// Updates come soon: moments may begin to come from the host.
    void begin_update() { moments_.begin(); }
    /// Updates what this rank does of a unit; units come in ascending order. A norm that is not finite is
    /// Category::internal, and nothing has changed.
    void update(int unit, std::vector<FlatPart> const& grads, Update const& update);
    /// The weights() were set from elsewhere, after so many updates: hands them to the model, as update() had done.
    void publish(int64_t applied_updates);

    int64_t bytes() const;  ///< of the device: moments, and weights where it keeps its own
    int64_t host_bytes() const { return moments_.host_bytes(); }  ///< beside the device's

    // Of the operations' main_dtype(), one part per range of ownership.updated, for checkpoints. Moments may be read
    // and written in the order of the compute queue until the next update, or begin_update().
    std::vector<FlatPart> weights() const;
    std::vector<FlatPart> first_moment() const { return moments_.first(); }
    std::vector<FlatPart> second_moment() const { return moments_.second(); }

  private:
    /// The updated ranges one after the other.
    struct Packed {
        Packed(Ops& ops, int64_t elements);
        Buffer memory;
        TensorView view;
    };
    bool rounds() const { return main_weights_.has_value(); }
    /// The model's weights in `range` from the optimizer's own: random after an update, a function of (seed, tensor,
    /// its element, number of the update) alone.
    void round_stochastically(FlatRange range, int64_t applied_updates);
    std::vector<FlatPart> parts(TensorView packed) const;
    /// Part of a unit that one call updates.
    struct Run {
        FlatRange range;
        bool decays;
        ParamLayout::Entry const* tensor;  ///< determines the random numbers
    };
    std::vector<Run> runs_of(FlatRange range) const;

    OptimizerOptions options_;
    ParamLayout const* layout_;
    Ownership ownership_;
    Ops* ops_;
    std::vector<FlatPart> weights_;
    uint64_t seed_;
    Moments moments_;
    std::optional<Packed> main_weights_;
};

}  // namespace perigee
