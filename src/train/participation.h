// How evenly the tokens of a global batch take part in the gradient, layer by layer: the participation ratio
// (sum of |g|)^2 / (T * sum of |g|^2), where g is the gradient of the stream of a token as it enters the layer. 1 where
// all tokens have gradients of the same norm, 1/T where one has all.
#pragma once

#include <optional>
#include <vector>

#include "comm/host_comm.h"
#include "ops/ops.h"
#include "parallel/mesh.h"
#include "train/options.h"

namespace perigee {

class Participation {
  public:
    Participation(Ops& ops, RunOptions const& options, MeshShape const& mesh);

    /// A step begins. Where it reports, memory for GradientSink::stream_rstd_LP, zeros; otherwise empty.
    TensorView begin(int64_t step);
    /// Waits for the backward of a micro-batch and adds up what it left there.
    void add();
    /// By layer, of a global batch with so many tokens; none where no token has a gradient. Empty where the step does
    /// not report. Collective.
    std::vector<std::optional<double>> report(HostComm& world, int64_t tokens) const;

  private:
    struct Sums {
        double norms = 0, squares = 0;
    };
    Ops& ops_;
    int64_t every_, width_, layers_, tokens_;  ///< tokens of a micro-batch on this rank
    Buffer memory_;
    TensorView stream_rstd_LP_;  ///< on a step that reports
    std::vector<Sums> sums_;     ///< of each layer
};

}  // namespace perigee
