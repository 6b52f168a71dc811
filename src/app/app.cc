#include "app/app.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <thread>
#include <utility>
#include <variant>

#include "app/chat.h"
#include "app/check.h"
#include "app/command_line.h"
#include "app/dry_run.h"
#include "app/fit.h"
#include "app/plan.h"
#include "base/held_signals.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/standard_files.h"
#include "base/stop_request.h"
#include "comm/launch.h"
#include "comm/launcher.h"
#include "config/config.h"
#include "config/follow.h"
#include "hf/config.h"
#include "serve/serve.h"
#include "train/described.h"
#include "train/evaluate.h"
#include "train/generate.h"
#include "train/seat.h"
#include "train/suites.h"
#include "train/trainer.h"
#include "train/watchdog.h"

namespace perigee {

namespace {

/// What the config says, or what is wrong with it. It is read before the job is joined, as its limits hold there as
/// well, and judged afterwards, when one rank can speak for all.
struct Config {
    RunOptions options;
    std::exception_ptr problem;
};

Config read_config(CommandLine const& command) {
    try {
        return {load_config(command.config, command.overrides), nullptr};
    } catch (...) {
        return {{}, std::current_exception()};
    }
}

/// A command of one process of a job.
struct Job {
    CommandLine const& command;
    Config const& config;
    Launch& launch;
    Watchdog& watchdog;
    FileSystem& files;
    std::string const& commit;
};

/// What the config says.
RunOptions const& configured(Job const& job) {
    if (job.config.problem) std::rethrow_exception(job.config.problem);
    return job.config.options;
}

/// Only generation does without.
TrainingData training_data_of(Command command) {
    bool const generates = command == Command::generate || command == Command::serve;
    return generates ? TrainingData::not_needed : TrainingData::needed;
}

/// With what is left open filled in; throws every problem with them at once. But for `check`, the process takes its
/// place.
RunOptions resolved(Job const& job, RunOptions options, int world_size) {
    refuse_problems(options, world_size, job.command.config, training_data_of(job.command.command));
    if (job.command.command != Command::check) {
        check_alike(options, job.launch.world());
        Seat const seat = take_seat(options, job.launch);
        if (options.threads == 0) options.threads = seat.cores;
        options.gpu = std::max(seat.gpu, 0);
    }
    options = resolve(options, job.launch.local_size(), job.files);
    if (job.command.command != Command::check) check_alike(options, job.launch.world());  // model.vocab_size may be new
    return options;
}

/// A checkpoint, and options for its model.
struct Trained {
    std::optional<Checkpoint> checkpoint;  ///< none: model.init_from has the weights
    RunOptions options;
};

/// The file's options with the checkpoint's model; what the command line says wins over both.
Trained load_trained(Job const& job) {
    RunOptions options = configured(job);
    HostComm& world = job.launch.world();
    check_alike(options, world);
    auto found = find_weights(options, world, job.files);
    if (found) follow(options, *found, {job.command.config, job.command.overrides}, world.rank() == 0);
    // Each rank reads and writes at its own pace here, so each has all of the weights.
    options.parallel.shard = ShardStage::none;
    // Nothing is trained, so any number of ranks will do for the batch of a step.
    options.train.global_batch_size = options.train.micro_batch_size * world.size();
    return {std::move(found), resolved(job, options, world.size())};
}

/// From here on the result of this command counts: the exit code, unless a rank was told to stop before.
int complete(Job const& job) {
    int64_t const stopped = job.watchdog.hold_stop() ? 0 : 1;
    if (job.launch.world().sum(stopped) == 0) return 0;
    log::info("told to stop: no result");
    return kExitPreempted;
}

int run_train(RunOptions const& as_configured, Job const& job) {
    outlive_readers();  // of the log: a run goes on without them
    HostComm& world = job.launch.world();
    int const local_ranks = job.launch.local_size();
    RunOptions const options =
        with_memory_policy_decided(with_stage_decided(as_configured, world, local_ranks), world, local_ranks);
    check_fits(options, world.size(), local_ranks);
    std::string const problem = export_problem(options.model, options.attention);
    if (!problem.empty() && world.rank() == 0)
        log::warn("this model cannot be exported to a Hugging Face folder: {}", problem);
    try {
        Launched launched{.program = "perigee " PERIGEE_VERSION};
        if (!job.commit.empty()) launched.program += fmt::format(" ({})", job.commit);
        if (world.rank() == 0) {
            StepMemory const planned = step_cost(options, world.size()).memory;
            launched.memory_planned_bytes = planned.in_use();
            launched.arena_bytes = planned.step;
        }
        launched.arena_bytes = world.max(launched.arena_bytes);
        Trainer trainer(options, world, job.files, to_yaml(as_configured), &job.watchdog, launched);
        return trainer.run() == Outcome::preempted ? kExitPreempted : 0;
    } catch (std::exception const& e) {
        Error const error = as_error(e);
        job.watchdog.record(error.category(), error.what());
        throw error;
    }
}

int run_suites(Trained const& trained, Job const& job) {
    RunOptions const& options = trained.options;
    bool const writes = job.launch.world().rank() == 0;
    std::optional<SuiteFiles> files;
    if (writes) files.emplace(job.files, options.output_dir);
    Session session(options, job.launch.world(), job.files);
    AskedByWatchdog const asked(&job.watchdog, [&session] { return session.mesh().failure(); });
    session.data_fingerprints(/*training=*/false);
    int64_t const step = session.load_weights(trained.checkpoint).step;
    SuiteResults const results = run_suites(session, step, session.selections(step), [&] {
        job.watchdog.enter(Section::eval, step);  // each forward has its limit
    });
    int const code = complete(job);
    if (code != 0 || !writes) return code;
    fmt::print("{}", results.tables);
    files->write(results, job.command.overrides);
    return code;
}

int run_eval(Trained const& trained, Job const& job) {
    RunOptions const& options = trained.options;
    if (!suites_of(options.eval.suites).empty()) return run_suites(trained, job);
    if (!has_validation(options.data))
        fail(Category::config,
             "there is no held-out data to evaluate on: give data.validation or a data.validation_fraction above 0");
    Session session(options, job.launch.world(), job.files);
    AskedByWatchdog const asked(&job.watchdog, [&session] { return session.mesh().failure(); });
    auto const validation = session.open(Split::validation);
    session.data_fingerprints(/*training=*/options.eval.reach);
    RunState const state = session.load_weights(trained.checkpoint);
    if (job.launch.world().rank() == 0) warn_of_other_template(options.data, state, job.files);
    auto const selections = session.selections(state.step);
    auto const begin_batch = [&] {
        job.watchdog.enter(Section::eval, state.step);
        job.launch.world().max(int64_t{0});  // ranks meet, so that one that hangs is noticed within its limit
        return true;
    };
    begin_batch();
    EvalReport report = *evaluate(session, *validation, state.step, selections, begin_batch);
    if (options.eval.reach) {
        begin_batch();
        report.layers = measure_reach(session, *session.open(Split::train), state.consumed_samples, selections);
    }
    int const code = complete(job);
    if (code == 0 && job.launch.world().rank() == 0) fmt::print("{}\n", to_json(report));
    return code;
}

int run_generate(Trained const& trained, Job const& job) {
    RunOptions const& options = trained.options;
    Session session(options, job.launch.world(), job.files);
    AskedByWatchdog const asked(&job.watchdog, [&session] { return session.mesh().failure(); });
    RunState const state = session.load_weights(trained.checkpoint);
    int64_t const step = state.step;
    bool const speaks = job.launch.world().rank() == 0;
    if (!options.generate.input.empty()) {
        job.watchdog.enter(Section::first_step, step);
        generate_file(session, state, [&] { job.watchdog.enter(Section::eval, step); });
        return complete(job);
    }
    if (options.generate.chat) {
        if (job.launch.world().size() > 1)
            fail(Category::config, "a conversation is for one process, not for {} ranks", job.launch.world().size());
        job.watchdog.enter(Section::first_step, step);
        run_chat(session, state, [&] { job.watchdog.enter(Section::eval, step); });
        return complete(job);
    }
    bool repeats = speaks && !has_chat_template(session);  // the prompt, once it is known to leave room
    auto const say_prompt = [&] {
        if (std::exchange(repeats, false)) print_generated(options.generate.prompt);
    };
    job.watchdog.enter(Section::first_step, step);
    generate(session, state, [&](std::string const& text) {
        job.watchdog.enter(Section::step, step);  // each token has the limit of a step
        say_prompt();
        if (speaks) print_generated(text);
    });
    say_prompt();
    if (speaks) fmt::print("\n");
    return complete(job);
}

/// A server that is told to stop has done what it is for.
int run_serve(Trained const& trained, Job const& job) {
    Session session(trained.options, job.launch.world(), job.files);
    AskedByWatchdog const asked(&job.watchdog, [&session] { return session.mesh().failure(); });
    RunState const state = session.load_weights(trained.checkpoint);
    if (!job.watchdog.hold_stop()) return kExitPreempted;
    job.watchdog.enter(Section::first_step, state.step);
    serve_model(session, state,
                {.alive = [&] { job.watchdog.enter(Section::eval, state.step); },
                 .must_stop = [] { return stop_requested(); },
                 .listens =
                     [&](std::string const& address) {
                         fmt::print("{}/v1   Ctrl-C ends it\n", address);
                         std::fflush(stdout);
                     }});
    return 0;
}

int run_check(Job const& job) {
    CommandLine const& asked = job.command;
    if (asked.folder) {
        if (job.launch.world().rank() == 0) fmt::print("{}\n", configured(job).output_dir);
        return complete(job);
    }
    int const ranks = asked.world_size > 0 ? asked.world_size : job.launch.world().size();
    std::optional<DeviceRates> rates;
    if (!asked.device.empty() || asked.fit)
        rates = device_rates(asked.device.empty() ? "h200" : asked.device, job.files);
    RunOptions configuration = configured(job);
    if (rates) configuration.device = DeviceChoice::cuda;
    if (asked.fit) {  // whatever layout the file has
        configuration.parallel.tensor = configuration.parallel.context = 1, configuration.parallel.data = -1;
        RunOptions const options = resolved(job, configuration, 1);
        if (job.launch.world().rank() == 0)
            fmt::print("{}", layouts_report(best_layouts(options, ranks, *rates), ranks, *rates));
        return complete(job);
    }
    RunOptions const options = with_steps_of_epochs(resolved(job, configuration, ranks), job.files);
    if (job.launch.world().rank() == 0) print_check(options, ranks, job.launch.local_size(), rates ? &*rates : nullptr);
    return complete(job);
}

int dispatch(Job const& job) {
    if (job.command.command == Command::check) return run_check(job);
    switch (job.command.command) {
        case Command::train:
            return run_train(with_steps_of_epochs(resolved(job, configured(job), job.launch.world().size()), job.files),
                             job);
        case Command::eval:
            return run_eval(load_trained(job), job);
        case Command::generate:
            return run_generate(load_trained(job), job);
        case Command::serve:
            return run_serve(load_trained(job), job);
        case Command::check:
            break;
    }
    return 0;
}

/// The watchdog looks at the ranks of the host while this lives.
class Watched {
  public:
    Watched(Watchdog& watchdog, Launch& launch) : watchdog_(watchdog), world_(launch.world()) {
        watchdog_.join(launch.board(), [&launch](Watchdog::Ending const& ending) {
            if (ending.at_once) launch.leave(ending.exit_code, ending.message);
            launch.abort(ending.exit_code, ending.message, ending.patience);
        });
    }
    ~Watched() { watchdog_.part(); }
    Watched(Watched const&) = delete;
    Watched& operator=(Watched const&) = delete;

    /// Returns once every rank has done its part. A rank that waits here still names one that hangs or dies, and ends
    /// with one that left.
    void wait_for_all() {
        watchdog_.hold_stop();
        world_.barrier();
    }

  private:
    Watchdog& watchdog_;
    HostComm& world_;
};

int run_job(Parsed const& parsed, Job const& job) {
    Launch& launch = job.launch;
    log::set_rank(launch.world().rank());
    if (launch.world().rank() == 0) take_launchers_terminal();
    Watched watched(job.watchdog, launch);
    if (stop_requested()) launch.leave(kExitPreempted, "told to stop: nothing to save yet");
    if (auto const* notice = std::get_if<CommandLineNotice>(&parsed)) {
        if (notice->exit_code != 0) launch.abort(notice->exit_code, notice->text);
        if (launch.world().rank() == 0) fmt::print("{}", notice->text);
        return 0;
    }
    try {
        int const code = dispatch(job);
        watched.wait_for_all();
        return code;
    } catch (std::exception const& e) {
        Error const error = as_error(e);
        if (error.category() == Category::communication) std::this_thread::sleep_for(kEchoPatience);
        launch.abort(error.exit_code(), fmt::format("{} error: {}", to_string(error.category()), error.what()));
    }
}

int join_and_run(Parsed const& parsed, FileSystem& files, std::string const& commit) {
    Watchdog watchdog(
        {}, files,
        [](Watchdog::Ending const& ending) {
            Launch::end_before_joining(ending.exit_code, ending.message, ending.patience);
        },
        ranks_promised() > 0);
    CommandLine const none;
    auto const* typed = std::get_if<CommandLine>(&parsed);
    CommandLine const& command = typed != nullptr ? *typed : none;
    Config config;
    if (typed != nullptr) config = read_config(command);
    if (!config.problem) watchdog.limit_by(config.options.watchdog);
    Launch launch(nullptr, nullptr);
    return run_job(parsed, {command, config, launch, watchdog, files, commit});
}

/// A command that is no job. The watchdog's thread ends it when it is told to stop; signals are left to the other
/// threads, as some commands wait for them.
int run_alone(LocalCommand const& command, FileSystem& files) {
    if (int const ranks = ranks_promised(); ranks > 1) {
        std::string const message = fmt::format(
            "config error: `perigee {}` runs as one process, not as {} ranks: start it without mpirun or srun",
            command.name, ranks);
        Launch::end_before_joining(static_cast<int>(Category::config), message, std::chrono::seconds(0));
    }
    std::optional<Watchdog> watchdog;
    {
        HeldSignals const held;
        watchdog.emplace(WatchdogOptions{.enabled = false}, files, [](Watchdog::Ending const& ending) {
            bool const told = ending.exit_code == kExitPreempted;
            Launch::end_before_joining(ending.exit_code, told ? "told to stop: no result" : ending.message,
                                       ending.patience);
        });
    }
    return command.action(files);
}

int show(CommandLineNotice const& notice) {
    fmt::print(notice.exit_code == 0 ? stdout : stderr, "{}{}", notice.exit_code == 0 ? "" : "perigee: ", notice.text);
    return notice.exit_code;
}

}  // namespace

int run_app(int argc, char** argv, FileSystem& files, std::string const& commit) {
    try {
        Parsed const parsed = parse_command_line(argc, argv);
        if (auto const* command = std::get_if<LocalCommand>(&parsed)) return run_alone(*command, files);
        auto const* notice = std::get_if<CommandLineNotice>(&parsed);
        if (notice != nullptr && ranks_promised() == 0) return show(*notice);
        return join_and_run(parsed, files, commit);
    } catch (std::exception const& e) {  // joining the job failed: there is no job yet to end
        Error const error = as_error(e);
        fmt::print(stderr, "perigee: {} error: {}\n", to_string(error.category()), printable(error.what()));
        return error.exit_code();
    }
}

}  // namespace perigee
