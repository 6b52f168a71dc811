// What a training step changes and how: gradients, optimizer, and the step itself over micro-batches that somebody
// else has found. `perigee check` runs this code on a device without memory, with communicators that only count.
#pragma once

#include <vector>

#include "checkpoint/checkpoint.h"
#include "optim/optimizer.h"
#include "parallel/sharded_gradients.h"
#include "tensor/batch.h"
#include "train/metrics.h"
#include "train/participation.h"
#include "train/session.h"

namespace perigee {

class Learner {
  public:
    /// `session` outlives it. Gradients and moments come from its device.
    explicit Learner(Session& session);

    /// One optimizer step: loss and gradients of the global batch, of which `batches` are this rank's micro-batches,
    /// judged, and applied to the weights if it is to be. A batch without a token that carries loss changes no weight;
    /// its loss is NaN. Moves `state` on. Throws Category::data for the 101st of those in a row, Category::numeric as
    /// judge_step does. Collective.
    StepReport step(std::vector<Batch> const& batches, RunState& state);

    /// The next update waits for `copied`: weights and moments are read until then.
    void update_after(Event const& copied) { read_until_ = copied; }

    /// What each rank tells the others between two steps.
    struct Signs {
        bool stop = false;     ///< it was told to
        bool writing = false;  ///< its checkpoint
    };
    /// What holds for any rank. Collective.
    Signs agree(Signs mine) const;

    /// Weights and moments of the optimizer, as far as this rank holds them in `ranges` of its flat buffers; on the
    /// device.
    std::vector<StoredTensor> tensors(std::vector<FlatRange> const& ranges) const;
    /// What this rank alone answers for, in a checkpoint.
    std::vector<FlatRange> const& owned() const { return session_.sharding().ownership.owned; }

    /// What a new run starts from: the weights in `model.init_from`, or random ones, each a function of (seed, name,
    /// index) alone. Collective.
    void initialise(uint64_t seed);
    /// Weights and moments of a checkpoint. Collective.
    void read(Checkpoint const& checkpoint);

    ShardedGradients const& gradients() const { return grads_; }
    int64_t optimizer_bytes() const { return optimizer_.bytes(); }
    int64_t optimizer_host_bytes() const { return optimizer_.host_bytes(); }

  private:
    struct Sums {
        double loss = 0;     ///< weight * nll
        double squares = 0;  ///< of the gradients
    };
    /// This rank's part of a step, which can be computed again.
    struct Work {
        int64_t step;
        std::vector<Batch> const& batches;
        std::vector<Selection> const& selections;
        double loss_weight;  ///< of the global batch
    };
    void enter(Phase phase);
    void judge_and_update(Work const& work, Sums const& sums, StepReport& r, RunState& state);
    /// A global batch without a token that carries loss: no update.
    void leave_out(StepReport& r, RunState& state);
    /// Loss and gradient norm of the whole job, from the sums of its ranks.
    void add_up(Sums const& sums, StepReport& r);
    /// Computes a suspicious step, whose sums were `first`, again; returns those that count: the second ones where
    /// they differ, which a warning tells.
    Sums compute_again(Work const& work, Sums const& first);
    bool differ(double a, double b, double tolerance) const;
    /// Compares what ranks hold alike after the step. Throws Category::corruption where a tensor differs, and
    /// Category::faulty_device where a rank also computes the step with two results.
    void check_replicas(Work const& work);
    /// Adds up gradients of the micro-batches over the ranks; the only place where a step waits for the device.
    Sums loss_and_gradient(Work const& work);
    /// The optimizer's weights were set, as they are after so many updates: makes them the model's.
    void publish(int64_t applied_updates);

    Session& session_;
    RunOptions const& options_;
    Mesh const& mesh_;
    ShardedGradients grads_;
    /// Counts of quantised operands on steps that report them, else empty.
    TensorView counts(int64_t step) const;
    std::vector<PrecisionReport> precision_report(TensorView counts) const;

    Buffer sums_;    ///< a Sums on the device
    Buffer counts_;  ///< as GradientSink's, if precision.report_every is not 0
    Participation participation_;
    AdamWOptimizer optimizer_;
    Untrained const untrained_;
    Event read_until_;                ///< by a save
    bool told_without_loss_ = false;  ///< in this process
};

}  // namespace perigee
