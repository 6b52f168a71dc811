// The training loop: read it first. A step takes the next batches to the Learner, which computes, reduces, judges and
// updates; around it are reports, saves, evaluations, and leaving when told to.
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/saver.h"
#include "data/data_source.h"
#include "train/learner.h"
#include "train/log_table.h"
#include "train/metrics.h"
#include "train/profile.h"
#include "train/progress.h"
#include "train/run_folder.h"
#include "train/run_record.h"
#include "train/session.h"
#include "train/slow_ranks.h"
#include "train/watchdog.h"

namespace perigee {

enum class Outcome { finished, preempted };

class Trainer {
  public:
    /// Opens data and run folder, resumes from a checkpoint or initialises the weights. `resolved_yaml` and `launched`
    /// are saved with the run. `watchdog`, which may be null, is told what goes on. Collective, like everything here.
    Trainer(RunOptions const& options, HostComm& world, FileSystem& files, std::string const& resolved_yaml,
            Watchdog* watchdog = nullptr, Launched const& launched = {});
    Trainer(Trainer const&) = delete;
    Trainer& operator=(Trainer const&) = delete;

    /// Trains until train.steps, or until a rank is told to stop; saves either way what is not saved yet.
    Outcome run();
    /// One optimizer step on the next global batch (Learner::step).
    StepReport step();
    /// What follows from the judgement of the last step besides its own update: keeps the checkpoint before a spike,
    /// stops, or rolls back, after which false. Throws Category::numeric.
    bool accept(StepReport const& report);
    /// Saves the state after the latest step. With checkpoint.async, and unless `last`, a later step or save completes
    /// the checkpoint. A failed save is reported and training goes on; the third in a row, and any with `last`, throws
    /// Category::checkpoint.
    void save(bool last);

    RunState const& state() const { return state_; }
    Session& session() { return session_; }

  private:
    void enter(Section section);
    void start();
    /// Says what the job runs on, and leaves run.json.
    void record(Launched const& launched);
    /// Goes on from a checkpoint; `run_id` is that of the folder's run, empty for a new one.
    void resume(Checkpoint const& found, std::string const& run_id);
    void note_chat_template();
    /// Warns where the layout, the data or the seed differ from those of the checkpoint.
    void warn_of_other_numbers(RunState const& then) const;
    void take_run_id(Checkpoint const& found, std::string const& run_id);
    /// Whether a checkpoint lies in output_dir. Collective: rank 0 looks.
    bool is_own(Checkpoint const& found);
    /// Where no step is left after the checkpoint, or other data than train.epochs says.
    void say_what_is_left() const;
    /// As checkpoint.resume says; but a run that began from the folder named there goes on from its own checkpoints, so
    /// that the same command starts it again. Collective.
    CheckpointOptions where_to_begin();
    /// The checkpoint that checkpoint.resume names, now or when the run began; empty if none.
    std::string origin(Checkpoint const& found) const;
    bool told_to_stop();
    /// Within an evaluation, which may be long: whether nobody is told to stop. What all ranks have written becomes a
    /// checkpoint.
    bool evaluation_goes_on();
    /// Told to stop, and saved.
    Outcome leave();
    bool may_begin();
    /// The newest checkpoint whose weights a step before `step` has found good, else the oldest one; 0 where there is
    /// none. One that is being saved counts. Collective.
    int64_t good_checkpoint(int64_t step);
    void keep_checkpoint_before(int64_t step);
    void roll_back(StepReport const& report);
    /// Whether the best checkpoint that `then` knows was found on other held-out data, which a warning tells. Rank 0
    /// knows.
    bool measured_elsewhere(RunState const& then) const;
    /// The state of a checkpoint, or of the beginning of the run.
    RunState state_of(std::optional<Checkpoint> const& found);
    void begin_save(bool last);
    void finish_save(bool last);
    void save_failed(Error const& error, int64_t step, bool last);
    /// This rank's micro-batches of the global batch that begins with this sample.
    std::vector<Batch> read_batches(int64_t first_sample) const;
    /// Those of the next step; what comes after them is read while that step computes.
    std::vector<Batch> next_batches();
    void report(StepReport const& report);
    /// A row of the log, where one is due: its rates are means since the last one.
    void log_step(StepReport const& report, double seconds_left);
    void say_precision() const;  ///< which share of the products' FLOPs is in FP8
    /// Says which share of the causal keys MoBA attends, now or from a later step on, by the first micro-batch.
    void say_attention() const;
    bool evaluation_due() const;  ///< of the state after the last step
    /// False where the job was told to stop meanwhile. A resumed run evaluates first.
    bool run_evaluation();
    /// A text that the model writes now, for samples.jsonl.
    void write_sample();
    void consider_best(RunState::Best const& now);
    /// Brings metrics, event files and the best checkpoint back to the state's step. Rank 0 alone.
    void rewind_folder();

    Session session_;
    RunOptions const& options_;
    Mesh const& mesh_;
    Learner learner_;
    std::unique_ptr<DataSource> train_data_;
    std::unique_ptr<DataSource> validation_data_;
    struct Ahead {
        int64_t first_sample;
        std::future<std::vector<Batch>> batches;
    };
    std::optional<Ahead> ahead_;
    std::unique_ptr<RunFolder> folder_;  ///< rank 0 only
    Saver saver_;
    Watchdog* watchdog_;
    RunState state_;
    std::string held_out_;  ///< held_out_data(); rank 0 only
    Progress progress_;
    /// Stops the log from redrawing the progress bar, even if the constructor throws.
    struct LeavesLog {
        ~LeavesLog();
    } leaves_log_;
    Profile profile_;
    std::optional<RunState::Best> in_flight_loss_;  ///< held-out loss of the step that is being saved
    int64_t failed_saves_ = 0;
    int64_t saved_step_ = -1;
    std::chrono::steady_clock::time_point save_began_;
    double save_waited_ = 0;       ///< seconds of the latest save in which training waited
    int64_t first_step_ = 0;       ///< of this process, for the time left
    bool began_ = false;           ///< a step, in this process
    double seconds_per_step_ = 0;  ///< smoothed
    LogTable table_;
    StepReport since_line_;  ///< tokens, FLOPs and seconds of the steps since the last line
    std::chrono::steady_clock::time_point last_line_;
    std::optional<double> peak_flops_;  ///< of the device
    MemoryInUse memory_;
    SlowRanks slow_ranks_;
    static std::optional<std::string> underflow_warning(StepReport const& r);
    bool warned_of_underflow_ = false;
    bool moba_acts_ = true;  ///< no step has attended every causal key yet
    AskedByWatchdog asked_;  ///< last: it asks the mesh
};

}  // namespace perigee
