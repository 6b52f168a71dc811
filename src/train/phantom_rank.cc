#include "train/phantom_rank.h"

#include "train/snapshot.h"

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
    ParamLayout const& layout = session.layout();
    fill_weights(layout, session.weights(), [&](int unit, TensorView values) {
        std::vector<FlatPart> const parts = {{layout.unit(unit), values}};
        if (session.options().model.init_from.empty())
            initialise(session.ops(), layout, parts, seed);
        else
            session.read_initial(stored_tensors(layout, parts, "", {layout.unit(unit)}));
    });
}

}  // namespace perigee
