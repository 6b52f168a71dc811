// What a trainer does about the spikes that its guard finds.
#include <algorithm>

#include "base/log.h"
#include "checkpoint/agree.h"
#include "checkpoint/folders.h"
#include "train/described.h"
#include "train/trainer.h"

namespace perigee {

bool Trainer::accept(StepReport const& r) {
    if (r.judged.new_spike) keep_checkpoint_before(r.step);
    if (r.judged.verdict == Verdict::stop)
        fail(Category::numeric, "step {}: stopped before the update, because of a spike (guard.spike: stop)", r.step);
    if (r.judged.verdict != Verdict::roll_back) return true;
    roll_back(r);
    return false;
}

int64_t Trainer::good_checkpoint(int64_t step) {
    std::vector<int64_t> steps;  // newest first; rank 0 knows
    agree(mesh_.world(), [&] {
        if (!folder_) return;
        for (StepFolder const& f : step_folders(session_.files(), checkpoint_root(options_.output_dir)))
            if (f.step < step) steps.push_back(f.step);
    });
    if (folder_ && saver_.in_flight()) steps.insert(steps.begin(), saver_.step());
    RunState::Spikes const& spikes = state_.spikes;
    // The loss of the step after a checkpoint is that of its weights. What did not help once is not tried again.
    bool const again = spikes.rollbacks > 0;
    auto const good =
        std::ranges::find_if(steps, [&](int64_t s) { return s + 1 < step && (!again || s != spikes.rolled_back_to); });
    int64_t const found = good != steps.end() ? *good : steps.empty() ? 0 : steps.back();
    return mesh_.world().max(found);
}

void Trainer::keep_checkpoint_before(int64_t step) {
    int64_t const good = good_checkpoint(step);
    if (good == 0 || std::ranges::count(state_.spikes.kept, good) > 0) return;
    state_.spikes.kept.push_back(good);
    saver_.keep(good);
    log::info("the checkpoint of step {}, before the spike, will not be pruned", good);
}

bool Trainer::measured_elsewhere(RunState const& then) const {
    if (!folder_ || !then.best) return false;
    auto const before = stored_options(then);
    if (!before || held_out_data(*before, then.data) == held_out_) return false;
    log::warn("the held-out data has changed since step {} was the best: only losses on the new data count from now on",
              then.best->step);
    return true;
}

RunState Trainer::state_of(std::optional<Checkpoint> const& found) {
    RunState state = found ? found->state() : RunState{};
    // Losses of another run or of other data are no measure for these; another run's checkpoints lie elsewhere.
    if (!state.run_id.empty() && state.run_id != state_.run_id) state.best = {}, state.spikes = {};
    if (mesh_.world().any(measured_elsewhere(state))) state.best = {};
    if (mesh_.world().any(folder_ && state.data != state_.data)) state.spikes.losses = {}, state.spikes.grad_norms = {};
    state.seed = state_.seed;
    state.run_id = state_.run_id;
    state.options = state_.options;
    state.data = state_.data;
    state.info = state_.info;
    return state;
}

void Trainer::roll_back(StepReport const& r) {
    if (state_.spikes.rollbacks >= options_.guard.max_rollbacks)
        fail(Category::numeric, "step {}: a spike after {} rollbacks (guard.max_rollbacks)", r.step,
             state_.spikes.rollbacks);
    if (saver_.in_flight()) finish_save(/*last=*/false);
    enter(Section::setup);
    int64_t const good = good_checkpoint(r.step);
    Path const root = checkpoint_root(options_.output_dir);
    HostComm& world = mesh_.world();
    agree(world, [&] {
        if (!folder_) return;
        for (StepFolder const& f : step_folders(session_.files(), root)) {
            if (f.step <= good) continue;
            std::string const now = set_aside(session_.files(), root, f.name, kRolledBackSuffix);
            log::info("checkpoint {} belongs to steps that were rolled back: it is now {} and may be deleted", f.name,
                      now);
        }
    });
    auto found = find_latest(session_.files(), world, root, Damaged::set_aside, state_.run_id);
    CheckpointOptions const& where = options_.checkpoint;
    if (!found && where.names_folder()) found = Checkpoint::open(session_.files(), world, where.resume);

    RunState::Spikes const before = state_.spikes;
    state_ = state_of(found);
    if (found)
        learner_.read(*found);
    else
        learner_.initialise(state_.seed);
    state_.consumed_samples = r.consumed_samples;
    state_.consumed_tokens = r.tokens_so_far;
    state_.spikes.last = before.last;
    state_.spikes.rollbacks = before.rollbacks + 1;
    state_.spikes.rolled_back_to = state_.step;
    state_.spikes.kept = before.kept;
    saved_step_ = -1;  // the checkpoint of this step does not say what was rolled back
    if (folder_) {
        rewind_folder();
        log::warn("step {}: rolled back to step {}; goes on after sample {} (rollback {} of {})", r.step, state_.step,
                  state_.consumed_samples, state_.spikes.rollbacks, options_.guard.max_rollbacks);
    }
    world.barrier();  // large folders take long: within the limit of this section, not of the next step
    say_what_is_left();
}

}  // namespace perigee
