#include "train/trainer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/log.h"
#include "base/stop_request.h"
#include "checkpoint/agree.h"
#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "data/chat_record.h"
#include "device/peak_flops.h"
#include "train/described.h"
#include "train/evaluate.h"

namespace perigee {

namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr int64_t kFailedSavesInARow = 3;

/// Rank 0 makes the folder; where it cannot, every rank must know.
std::unique_ptr<RunFolder> open_folder(RunOptions const& options, HostComm& world, FileSystem& files) {
    if (world.rank() != 0) return nullptr;
    return std::make_unique<RunFolder>(files, options.output_dir);
}

constexpr char kDataSummary[] = "data";  // in RunState::info

/// The summary of the training data without the paths of its files, so that moved data compare as equal.
std::string without_paths(std::string summary, DataOptions const& data) {
    for (DatasetOptions const& set : data.train)
        if (size_t const at = summary.find(set.path + ": "); at != summary.npos) summary.erase(at, set.path.size());
    return summary;
}

bool wants_validation(RunOptions const& options) { return options.eval.every > 0; }

std::string layout_text(Mesh const& mesh, Ops& ops) {
    MeshShape const s = mesh.shape();
    return fmt::format("dp {} cp {} tp {} on {}", s.dp, s.cp, s.tp, ops.device().name());
}

}  // namespace

Trainer::Trainer(RunOptions const& options, HostComm& world, FileSystem& files, std::string const& resolved_yaml,
                 Watchdog* watchdog, Launched const& launched)
    : session_(options, world, files),
      options_(session_.options()),
      mesh_(session_.mesh()),
      learner_(session_),
      train_data_(session_.open(Split::train)),
      validation_data_(wants_validation(options_) ? session_.open(Split::validation) : nullptr),
      folder_(open_folder(options_, world, files)),
      saver_(files, world, checkpoint_root(options_.output_dir), options_.checkpoint.retention(),
             session_.ops().device()),
      watchdog_(watchdog),
      progress_(options_.log.progress && world.rank() == 0),
      profile_(options_.train.profile, session_.ops().device(), files, options_.output_dir, world.rank()),
      peak_flops_(peak_bf16_flops(session_.ops().device().name())),
      asked_(watchdog, [this] { return mesh_.failure(); }) {
    // The folder exists after this, or rank 0 has failed and ends the job.
    std::string const holder = world.broadcast_text(folder_ ? folder_->holder() : "", 0);
    check_shared(files, options_.output_dir, holder);
    if (watchdog_ != nullptr) watchdog_->report_into(options_.output_dir);
    if (folder_) {
        folder_->mirror_log();
        log::around_lines([this] { progress_.clear(); }, [this] { progress_.redraw(); });
    }
    session_.ops().device().phases().start();
    if (!session_.ops().device().is_host()) session_.arena().reserve(launched.arena_bytes);
    start();
    if (folder_) folder_->write_config(resolved_yaml, state_.run_id);
    record(launched);
}

Trainer::LeavesLog::~LeavesLog() { log::around_lines({}, {}); }

void Trainer::enter(Section section) {
    bool const in_step = section == Section::first_step || section == Section::step;
    if (watchdog_ != nullptr) watchdog_->enter(section, state_.step + (in_step ? 1 : 0));
}

void Trainer::start() {
    int64_t const trained = session_.layout().global_size(), all = session_.parameters();
    std::string const of_them = trained == all ? "" : fmt::format(", {} of them trained", format_count(trained));
    log::info("{} parameters{}, {}; {}", format_count(all), of_them, layout_text(mesh_, session_.ops()),
              train_data_->summary());
    if (std::string const reads = train_data_->uneven_reads(); folder_ && options_.train.epochs > 0 && !reads.empty())
        log::warn("with these weights of the data sets, one epoch reads {}", reads);
    say_precision();
    state_.seed = static_cast<uint64_t>(options_.seed);
    state_.info = {{"layout", layout_text(mesh_, session_.ops())}, {kDataSummary, train_data_->summary()}};
    state_.options = options_text(options_);
    auto const data = session_.data_fingerprints();
    if (folder_) {
        state_.data = data;
        held_out_ = held_out_data(options_, state_.data);
        note_chat_template();
    }
    HostComm& world = mesh_.world();
    std::string const run_id = world.broadcast_text(folder_ ? folder_->run_id() : "", 0);
    auto const found =
        find_checkpoint(where_to_begin(), options_.output_dir, world, session_.files(), Damaged::set_aside, run_id);
    session_.load_frozen();
    if (!session_.base().empty()) state_.info[RunState::kBase] = session_.base();
    if (found) {
        resume(*found, run_id);
    } else {
        learner_.initialise(state_.seed);
        state_.run_id = world.broadcast_text(run_id.empty() ? new_run_id() : run_id, 0);
    }
    first_step_ = state_.step;
    say_attention();
    if (folder_) {
        clean_up(session_.files(), checkpoint_root(options_.output_dir));
        rewind_folder();
    }
    world.barrier();  // what takes long here does not count as a part of the first step
}

void Trainer::rewind_folder() {
    auto const of_step = folder_->rewind_metrics(state_.step, evaluation_due());
    if (options_.log.tensorboard) folder_->write_events(state_.step, of_step);
    Path const root = checkpoint_root(options_.output_dir);
    if (state_.best && !session_.files().exists(root / step_name(state_.best->step))) state_.best.reset();
    auto const best = best_evaluation(session_.files(), options_.output_dir, held_out_);
    if (best) consider_best({best->step, best->loss});
}

/// The template that rendered the conversations goes with the weights.
void Trainer::note_chat_template() {
    ChatRecords const found = chat_records_of(session_.files(), options_.data);
    if (!found.others.empty())
        log::warn("several chat templates rendered the data: checkpoints carry that of {}, and {} {} another one",
                  found.prefix, fmt::join(found.others, ", "), found.others.size() == 1 ? "has" : "have");
    if (!found.first) return;
    state_.info[RunState::kChatTemplate] = found.first->text;
    state_.info.erase(RunState::kChatStop);
    if (found.first->stop.size() == 1) state_.info[RunState::kChatStop] = std::to_string(found.first->stop[0]);
}

CheckpointOptions Trainer::where_to_begin() {
    CheckpointOptions where = options_.checkpoint;
    if (!where.names_folder()) return where;
    Path const root = checkpoint_root(options_.output_dir);
    auto const began_there = [&](StepFolder const& step) {
        try {
            Path const manifest = root / step.name / kManifestName;
            RunState const state =
                Manifest::parse(session_.files().read_text(manifest, kMaxManifestBytes), manifest.string()).state;
            auto const from = state.info.find(RunState::kBeganFrom);
            return from != state.info.end() && from->second == whole_path(where.resume);
        } catch (Error const&) {  // damaged: another one may say it
            return false;
        }
    };
    bool goes_on = false;
    agree(mesh_.world(), [&] {
        if (mesh_.world().rank() == 0) goes_on = std::ranges::any_of(step_folders(session_.files(), root), began_there);
    });
    if (mesh_.world().sum(int64_t{goes_on}) == 0) return where;
    log::info("this run began from {} and goes on from its own checkpoints", where.resume);
    where.resume = "auto";
    return where;
}

std::string Trainer::origin(Checkpoint const& found) const {
    if (options_.checkpoint.names_folder() && whole_path(options_.checkpoint.resume) == whole_path(found.folder()))
        return whole_path(found.folder());
    auto const from = found.state().info.find(RunState::kBeganFrom);
    return from == found.state().info.end() ? "" : from->second;
}

void Trainer::resume(Checkpoint const& found, std::string const& run_id) {
    RunState const& then = found.state();
    auto const steps = step_folders(session_.files(), checkpoint_root(options_.output_dir));
    if (!steps.empty() && steps.front().step > then.step)
        fail(
            Category::config,
            "checkpoint.resume goes back to step {}, but {} holds {}, which a later `resume: auto` would prefer: go on "
            "from that one with checkpoint.resume=auto, choose another output_dir, or remove the later checkpoints",
            then.step, checkpoint_root(options_.output_dir).string(), steps.front().name);
    for (std::string const& sentence : compare(found, options_, state_.data))
        if (folder_) log::warn("{}", sentence);
    if (folder_) warn_of_unread_folders(options_, found);
    session_.check_base(found);
    if (folder_) warn_of_other_numbers(then);
    learner_.read(found);
    take_run_id(found, run_id);
    state_ = state_of(found);
    if (std::string const from = origin(found); !from.empty()) state_.info[RunState::kBeganFrom] = from;
    saved_step_ = is_own(found) ? state_.step : -1;
    say_what_is_left();
    for (int64_t const step : state_.spikes.kept) saver_.keep(step);
    log::info("resumed at step {} from {}", state_.step, found.folder().string());
}

void Trainer::warn_of_other_numbers(RunState const& then) const {
    auto const stored = stored_options(then);
    for (auto const& [key, now] : state_.info) {
        auto const before = then.info.find(key);
        if (key == RunState::kChatTemplate) {
            if (before != then.info.end() && before->second != now)
                log::warn("resuming with another chat template than before: that of the training data");
            continue;
        }
        bool const moved = key == kDataSummary && stored && before != then.info.end() &&
                           without_paths(before->second, stored->data) == without_paths(now, options_.data);
        if (!moved && (before == then.info.end() || before->second != now))
            log::warn(
                "resuming with another {} ({} before, {} now): the run is no longer bit for bit the unbroken one{}",
                key, before == then.info.end() ? "unknown" : before->second, now,
                key == kDataSummary ? ". Samples are numbered anew: some that were read come again, and others of "
                                      "this epoch may not come"
                                    : "");
    }
    if (then.seed != state_.seed)
        log::warn("resuming with seed {} a run that began with {}: the order of samples changes", state_.seed,
                  then.seed);
}

bool Trainer::is_own(Checkpoint const& found) {
    return mesh_.world().any(folder_ && perigee::is_own(found, options_.output_dir));
}

void Trainer::take_run_id(Checkpoint const& found, std::string const& run_id) {
    // A run that begins in a folder of its own from another one's checkpoint is a new run.
    std::string const& then = found.state().run_id;
    bool const own = is_own(found);
    std::string const now = !run_id.empty() ? run_id : own && !then.empty() ? then : new_run_id();
    state_.run_id = mesh_.world().broadcast_text(now, 0);
    if (!then.empty() && then != state_.run_id)
        log::info("the checkpoint is of another run, {}; this one is {}", then, state_.run_id);
}

void Trainer::say_what_is_left() const {
    TrainOptions const& train = options_.train;
    int64_t const left = train.steps - state_.step;
    if (!folder_) return;
    if (left < 0 || (left == 0 && saved_step_ < 0))
        log::warn("no step is left: the checkpoint is of step {}, and train.steps ({}) counts those before it too",
                  state_.step, train.steps);
    // Steps before may have taken more or fewer samples than train.epochs counts on.
    int64_t const samples = state_.consumed_samples + left * train.global_batch_size;
    if (train.epochs == 0 || left < 0 || samples == train.steps * train.global_batch_size) return;
    auto const epoch = static_cast<double>(train_data_->samples_per_epoch());
    double const missing = train.epochs * epoch - static_cast<double>(state_.consumed_samples);
    double const steps = std::max(0.0, std::ceil(missing / static_cast<double>(train.global_batch_size)));
    log::warn(
        "train.epochs ({}) are {} steps of {} samples, but the {} steps before took {}: the run ends after {:.4g} "
        "epochs. For {}, give train.epochs=0 train.steps={:.0f}",
        train.epochs, train.steps, train.global_batch_size, state_.step, state_.consumed_samples,
        static_cast<double>(samples) / epoch, train.epochs, static_cast<double>(state_.step) + steps);
}

Outcome Trainer::run() {
    if (options_.eval.every > 0) {
        enter(Section::eval);
        check_loss(session_, *validation_data_);
    }
    if (options_.checkpoint.every > 0 && state_.step < options_.train.steps) {
        enter(Section::save);  // pinning 100 GB takes minutes
        saver_.reserve(learner_.tensors(learner_.owned()));
    }
    for (;;) {
        // A step is saved before it is evaluated, so a run that resumes there evaluates first.
        if (evaluation_due() && !run_evaluation()) {
            save(/*last=*/true);
            return leave();
        }
        if (state_.step >= options_.train.steps) break;
        if (!began_ && !may_begin()) return Outcome::preempted;
        enter(std::exchange(began_, true) ? Section::step : Section::first_step);
        try {
            StepReport const r = step();
            report(r);
            if (!accept(r)) continue;
        } catch (Error const& e) {
            // All ranks judge alike: the last good state is worth keeping before they leave.
            bool const alike = e.category() == Category::numeric || e.category() == Category::corruption;
            if (alike && saver_.in_flight()) {
                try {
                    finish_save(/*last=*/false);
                } catch (Error const& of_save) {
                    if (folder_) log::warn("{}", of_save.what());
                }
            }
            throw;
        }
        bool const stop = told_to_stop();
        bool const last = stop || state_.step == options_.train.steps;
        if (last || (options_.checkpoint.every > 0 && state_.step % options_.checkpoint.every == 0)) save(last);
        if (stop && state_.step < options_.train.steps) return leave();
    }
    progress_.clear();
    profile_.finish();
    log::info("finished at step {}", state_.step);
    if (state_.applied_updates == 0 && state_.step > 0 && folder_)
        log::warn("no step has changed the weights: no token carried loss, or no step was finite");
    if (int64_t const missing = mesh_.world().sum(folder_ ? folder_->finish_metrics() : int64_t{0}); missing > 0)
        fail(Category::data,
             "the run is finished and saved at step {}, but {} lines of metrics.jsonl, samples.jsonl and blocks.jsonl "
             "in "
             "{} could not be written and are lost: make room there before the next run",
             state_.step, missing, options_.output_dir);
    return Outcome::finished;
}

bool Trainer::told_to_stop() {
    Learner::Signs const any = learner_.agree({.stop = stop_requested(), .writing = saver_.writing()});
    if (saver_.in_flight() && !any.writing) finish_save(/*last=*/false);
    return any.stop;
}

Outcome Trainer::leave() {
    profile_.finish();
    log::info("told to stop: saved at step {}", state_.step);
    if (int64_t const missing = folder_ ? folder_->finish_metrics() : 0; missing > 0)
        log::warn("{} lines of metrics.jsonl, samples.jsonl and blocks.jsonl could not be written and are lost",
                  missing);
    return Outcome::preempted;
}

/// A rank that is told to stop before the first step ends the job at once. From here on, and on all ranks, the step
/// that is going on is finished and saved.
bool Trainer::may_begin() {
    bool const stop = told_to_stop();
    if (watchdog_ != nullptr) watchdog_->hold_stop();
    if (stop) log::info("told to stop before a step: nothing to save");
    return !stop;
}

std::vector<Batch> Trainer::read_batches(int64_t first_sample) const {
    int64_t const micro = options_.train.micro_batch_size;
    int64_t const dp = mesh_.shape().dp;
    int64_t const accumulation = options_.train.global_batch_size / (micro * dp);
    std::vector<Batch> batches;
    for (int64_t i = 0; i < accumulation; ++i) {
        int64_t const number = (i * dp + mesh_.dp_rank()) * micro;  // of its first sample, in the global batch
        Batch& batch = batches.emplace_back(make_batch(*train_data_, first_sample + number, micro));
        batch.first_token = number * options_.data.sequence_length;
    }
    return batches;
}

std::vector<Batch> Trainer::next_batches() {
    int64_t const first = state_.consumed_samples, next = first + options_.train.global_batch_size;
    std::optional<Ahead> ahead = std::exchange(ahead_, std::nullopt);
    auto batches = ahead && ahead->first_sample == first ? ahead->batches.get() : read_batches(first);
    if (state_.step + 1 < options_.train.steps)
        ahead_ = Ahead{next, std::async(std::launch::async, [this, next] { return read_batches(next); })};
    return batches;
}

StepReport Trainer::step() {
    auto const start = Clock::now();
    Device& device = session_.ops().device();
    profile_.before_step(state_.step + 1);
    device.phases().enter(device.queue(), Phase::data);
    StepReport r = learner_.step(next_batches(), state_);
    device.phases().enter(device.queue(), Phase::none);
    profile_.after_step();
    r.phases = device.phases().take();
    slow_ranks_.take(session_, r.phases);
    r.seconds = seconds_since(start);
    r.epochs_so_far = static_cast<double>(r.consumed_samples) / static_cast<double>(train_data_->samples_per_epoch());
    r.peak_flops = peak_flops_;
    r.memory = memory_ = memory_in_use(device, memory_);
    return r;
}

void Trainer::save(bool last) {
    if (saver_.in_flight()) finish_save(last && saver_.step() == state_.step);
    if (saved_step_ == state_.step) return;
    begin_save(last);
    if (saver_.in_flight() && (last || !options_.checkpoint.asynchronous)) finish_save(last);
}

void Trainer::begin_save(bool last) {
    enter(Section::save);
    session_.check_frozen();
    try {
        save_began_ = Clock::now();
        // What was evaluated until now has its checkpoint, or never will: none is in flight. Later evaluations are of
        // this step, which stays.
        if (options_.checkpoint.keep_best && state_.best) saver_.keep_best(state_.best->step);
        saver_.begin(state_, learner_.tensors(learner_.owned()));
        learner_.update_after(saver_.copied());
        save_waited_ = seconds_since(save_began_);
    } catch (Error const& e) {
        save_failed(e, state_.step, last);
    }
}

void Trainer::finish_save(bool last) {
    enter(Section::save);
    int64_t const step = saver_.step();
    auto const began = Clock::now();
    auto const loss = std::exchange(in_flight_loss_, std::nullopt);
    try {
        saver_.finish();
        failed_saves_ = 0;
        saved_step_ = step;
        if (loss) consider_best(*loss);
        log::info("saved step {} in {:.2f} s, of which training waited {:.2f} s", step, seconds_since(save_began_),
                  save_waited_ + seconds_since(began));
    } catch (Error const& e) {
        save_failed(e, step, last);
    }
}

void Trainer::save_failed(Error const& error, int64_t step, bool last) {
    // Every rank throws alike, so all of them go on or stop together.
    if (error.category() != Category::checkpoint || last || ++failed_saves_ >= kFailedSavesInARow) throw error;
    if (folder_) log::warn("checkpoint at step {} failed, training goes on: {}", step, error.what());
}

}  // namespace perigee
