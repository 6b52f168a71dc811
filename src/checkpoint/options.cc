#include "checkpoint/checkpoint.h"

namespace perigee {

void describe(Schema& schema, CheckpointOptions& options) {
    schema
        .add("every", options.every, between(0, kMostSteps),
             "steps between checkpoints; 0: only at the end and when told to stop")
        .add("keep_last", options.keep_last, between(0, kMostSteps),
             "checkpoints to keep, the newest ones; 0 keeps all")
        .add("keep_every", options.keep_every, between(0, kMostSteps),
             "besides, keep for ever the checkpoints whose step is a multiple of this; 0: none")
        .add("keep_best", options.keep_best,
             "besides, keep the checkpoint with the lowest validation loss so far; eval.every must then be a multiple "
             "of every")
        .add("async", options.asynchronous,
             "training goes on while a checkpoint is written; false: it waits. Both write a copy of the state in host "
             "memory")
        .add("resume", options.resume,
             "auto: from the newest whole checkpoint of the run's folder, if there is one; damaged newer ones are "
             "renamed "
             "to step_....damaged, and where none is whole the run stops; never: a new run, in a folder without "
             "checkpoints; where there are some, eval, generate and serve take the newest and refuse another "
             "model.init_from or lora.init_from than the run's (auto and best warn of it); best: "
             "the one of the run's folder with the lowest validation loss, for eval and generate; or a checkpoint's "
             "folder to begin from; once the run has checkpoints of its own, the same command trains on from the "
             "newest of "
             "those, while eval, generate and serve take the folder")
        .add("allow_model_change", options.allow_model_change,
             "resume though keys that define the model differ from the checkpoint's: the weights go on as another "
             "model");
}

}  // namespace perigee
