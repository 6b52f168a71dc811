#include "train/phantom_rank.h"

namespace perigee {

PhantomOptions phantom_options(RunOptions const& options, int world_size, int rank) {
    MeshShape const shape = resolve_mesh(options.parallel, world_size);
    return {.rank = rank,
            .shape = shape,
            .tokens = options.train.micro_batch_size * options.data.sequence_length / shape.cp,
            .heads = options.model.num_attention_heads / shape.tp,
            .kv_heads = options.model.kv_heads() / shape.tp,
            .head_dim = options.model.head_size(),
            .seed = static_cast<uint64_t>(options.seed)};
}

void initialise_phantom(Session& session, Learner& learner, uint64_t seed) {
    learner.initialise(seed);
    auto const fill = [&](ParamLayout const& layout, ShardedWeights& weights) {
        fill_weights(layout, weights, [&](int unit, TensorView values) {
            if (values.size() > 0) session.initialise(layout, {{layout.unit(unit), values}}, seed);
        });
    };
    fill(session.layout(), session.weights());
    if (ShardedWeights* const frozen = session.model_weights().frozen_part()) fill(*session.frozen_layout(), *frozen);
}

}  // namespace perigee
