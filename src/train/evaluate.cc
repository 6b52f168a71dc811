#include "train/evaluate.h"

#include <algorithm>
#include <numeric>

namespace perigee {

EvalReport evaluate(Session& session, DataSource const& validation, int64_t step,
                    std::span<AttentionKind const> kinds) {
    RunOptions const& options = session.options();
    Mesh const& mesh = session.mesh();
    int64_t const samples = std::min(options.eval.samples, validation.samples_per_epoch());
    int64_t const micro = options.train.micro_batch_size;
    double loss = 0, weight = 0;
    for (int64_t first = mesh.dp_rank() * micro; first < samples; first += mesh.shape().dp * micro) {
        Batch const batch = make_batch(validation, first, std::min(micro, samples - first));
        loss += session.model().loss(session.weights(), batch, kinds, session.arena());
        weight = std::accumulate(batch.weights_T.begin(), batch.weights_T.end(), weight);
    }
    loss = mesh.dp_cp().sum(loss);
    weight = mesh.dp().sum(weight);  // cp ranks hold the same batches and share their tokens
    if (!(weight > 0)) fail(Category::data, "evaluation at step {}: no validation token carries loss", step);
    return {.step = step, .loss = loss / weight, .loss_weight = weight};
}

}  // namespace perigee
