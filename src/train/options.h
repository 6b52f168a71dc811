// All options of a run: what one YAML file says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"
#include "checkpoint/checkpoint.h"
#include "data/chat_template.h"
#include "data/options.h"
#include "eval/sampling.h"
#include "eval/suite_options.h"
#include "model/memory_policy.h"
#include "model/options.h"
#include "model/precision.h"
#include "ops/ops.h"
#include "optim/optimizer.h"
#include "parallel/mesh.h"
#include "train/watchdog.h"

namespace perigee {

enum class DeviceChoice { automatic, cpu, cuda };
enum class NonFinite { skip, stop };

/// Steps that are traced, counted from the first one of a job.
struct ProfileOptions {
    int64_t steps = 0;
    int64_t first = 5;  ///< steps before
};
void describe(Schema& schema, ProfileOptions& options);

struct TrainOptions {
    int64_t steps = 1000;
    double epochs = 0;               ///< of all training sets together; steps follows from it. 0: steps counts
    int64_t global_batch_size = 8;   ///< samples per step over all ranks; accumulation follows from it
    int64_t micro_batch_size = 1;    ///< samples per rank and forward pass
    std::string recompute = "none";  ///< levels by layer: parse_recompute()
    int64_t mlp_chunk = 0;           ///< tokens; 0: all at once
    int64_t offload = 0;             ///< layers; kOffloadAuto: as few as make a step fit
    bool cuda_graphs = true;         ///< on a GPU: repeated micro-batches are replayed
    int64_t moba_scratch_mib = static_cast<int64_t>(CudaOptions{}.moba_scratch >> 20);  ///< on a GPU
    NonFinite non_finite = NonFinite::skip;
    int64_t max_skipped_in_a_row = 3;
    std::vector<std::string> freeze = {};  ///< name patterns, see freeze() in model/llama.h
    ProfileOptions profile = {};
};
void describe(Schema& schema, TrainOptions& options);

/// What to do about a spike of the loss or the gradient norm.
enum class SpikePolicy { warn, skip, rollback, stop };

struct GuardOptions {
    SpikePolicy spike = SpikePolicy::warn;
    double spike_sigma = 6;      ///< above the median of the window
    int64_t spike_window = 128;  ///< steps
    int64_t max_rollbacks = 3;   ///< in a series of spikes
    bool compute_again = true;   ///< a suspicious step, before anything follows from it
    int64_t hash_every = 0;      ///< steps between comparisons of what ranks hold alike; 0: never
    double slow_factor = 1.25;   ///< of the median rank's time of a step; 0: nobody is watched
};
void describe(Schema& schema, GuardOptions& options);

struct EvalOptions {
    int64_t every = 0;         ///< steps between evaluations; 0: never during training
    int64_t samples = 64;      ///< validation samples, or all where there are fewer
    bool reach = false;        ///< also measure_reach() in train/evaluate.h
    bool blocks = false;       ///< also which blocks heads choose: blocks.jsonl
    std::string prompt = {};   ///< continued into samples.jsonl; empty: none
    SuiteOptions suites = {};  ///< run_suites() in train/suites.h
};
void describe(Schema& schema, EvalOptions& options);

/// `perigee serve`.
struct ServeOptions {
    std::string host = "127.0.0.1";
    int64_t port = 8643;   ///< 0: any that is free
    int64_t queue = 256;   ///< texts that wait
    int64_t body_mib = 8;  ///< of a request
    double request_s = 600;
};
void describe(Schema& schema, ServeOptions& options);

struct LogOptions {
    int64_t every = 0;     ///< steps between lines; 0: by time
    double seconds = 10;   ///< between lines
    bool progress = true;  ///< progress bar on a terminal
    bool tensorboard = false;
    int64_t participation_every = 0;  ///< steps; 0: never
};
void describe(Schema& schema, LogOptions& options);

struct RunOptions {
    std::string output_dir = "runs/default";
    int64_t seed = 1234;
    DeviceChoice device = DeviceChoice::automatic;
    int gpu = 0;                 ///< no key: the one this rank takes, among those it sees (train/seat.h)
    bool deterministic = false;  ///< on a GPU: the same bits every time, where that costs speed too
    int64_t threads = 0;         ///< per rank on the CPU; 0: every core the rank may use
    ModelOptions model;
    AttentionOptions attention;
    PrecisionOptions precision;
    DataOptions data;
    ChatOptions chat;
    TrainOptions train;
    GuardOptions guard;
    OptimizerOptions optimizer;
    ScheduleOptions schedule;
    CheckpointOptions checkpoint;
    EvalOptions eval;
    SamplingOptions generate;
    ServeOptions serve;
    LogOptions log;
    WatchdogOptions watchdog;
    ParallelOptions parallel;
};
void describe(Schema& schema, RunOptions& options);

inline constexpr int64_t kOffloadAuto = -1;
/// How the model saves memory; what is still to be decided is left out.
MemoryPolicy memory_policy(RunOptions const& options);

/// Of a rank's micro-batch.
struct TokensOfRank {
    int64_t all;
    int64_t of_mlp_chunk;  ///< all of them without train.mlp_chunk
};
TokensOfRank tokens_of_rank(RunOptions const& options, MeshShape const& mesh);

/// Whether a command reads data.train.
enum class TrainingData { needed, not_needed };

/// Every contradiction between fields, sections and the number of ranks, each as a sentence that names keys and both
/// numbers; empty when the run can start. Fills nothing in.
std::vector<std::string> problems(RunOptions const& options, int world_size,
                                  TrainingData training_data = TrainingData::needed);
/// Those of the schedule, which problems() leaves out while train.steps is still to follow from train.epochs.
std::vector<std::string> schedule_problems(RunOptions const& options);

}  // namespace perigee
