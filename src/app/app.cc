#include "app/app.h"

#include <chrono>
#include <cstdio>
#include <exception>
#include <variant>

#include "app/check.h"
#include "app/command_line.h"
#include "base/log.h"
#include "comm/launch.h"
#include "config/config.h"
#include "hf/config.h"
#include "train/evaluate.h"
#include "train/generate.h"
#include "train/trainer.h"
#include "train/watchdog.h"

namespace perigee {

namespace {

/// The options of this job, or every problem with them at once.
RunOptions load_options(CommandLine const& command, int world_size, int local_ranks, FileSystem& files) {
    RunOptions const options = load_config(command.config, command.overrides);
    std::vector<std::string> const found = problems(options, world_size);
    if (!found.empty())
        fail(Category::config, "{}: {}", command.config, fmt::join(found, fmt::format("\n{}: ", command.config)));
    return resolve(options, local_ranks, files);
}

int run_train(RunOptions const& options, Launch& launch, FileSystem& files) {
    Watchdog watchdog(options.watchdog, launch.board(), files,
                      [&launch](int exit_code, std::string const& message, std::chrono::seconds patience) {
                          launch.abort(exit_code, message, patience);
                      });
    std::string const problem = export_problem(options.model, options.attention);
    if (!problem.empty() && launch.world().rank() == 0)
        log::warn("this model cannot be exported to a Hugging Face folder: {}", problem);
    try {
        Trainer trainer(options, launch.world(), files, to_yaml(options), &watchdog);
        return trainer.run() == Outcome::preempted ? kExitPreempted : 0;
    } catch (Error const& e) {
        watchdog.record(e.category(), e.what());
        throw;
    } catch (std::exception const& e) {
        watchdog.record(Category::internal, e.what());
        throw;
    }
}

int run_eval(RunOptions const& options, Comm& world, FileSystem& files) {
    Session session(options, world, files);
    auto const validation = session.open(Split::validation);
    RunState const state = session.load_weights();
    auto const kinds = session.kinds(state.step);
    EvalReport report = evaluate(session, *validation, state.step, kinds);
    if (options.eval.reach)
        report.layers = measure_reach(session, *session.open(Split::train), state.consumed_samples, kinds);
    if (world.rank() == 0) fmt::print("{}\n", to_json(report));
    return 0;
}

int run_generate(RunOptions const& options, Comm& world, FileSystem& files) {
    Session session(options, world, files);
    int64_t const step = session.load_weights().step;
    bool const speaks = world.rank() == 0;
    if (speaks && options.chat.format == ChatFormat::none) fmt::print("{}", options.generate.prompt);
    generate(session, step, [speaks](std::string const& text) {
        if (!speaks) return;
        fmt::print("{}", text);
        std::fflush(stdout);
    });
    if (speaks) fmt::print("\n");
    return 0;
}

int dispatch(CommandLine const& command, Launch& launch, FileSystem& files) {
    Comm& world = launch.world();
    if (command.command == Command::check) {
        int const ranks = command.world_size > 0 ? command.world_size : world.size();
        RunOptions const options = load_options(command, ranks, launch.local_size(), files);
        if (world.rank() == 0) print_check(options, ranks);
        return 0;
    }
    RunOptions const options = load_options(command, world.size(), launch.local_size(), files);
    switch (command.command) {
        case Command::train:
            return run_train(options, launch, files);
        case Command::eval:
            return run_eval(options, world, files);
        case Command::generate:
            return run_generate(options, world, files);
        case Command::check:
            break;
    }
    return 0;
}

int run_job(int argc, char** argv, Launch& launch, FileSystem& files) {
    log::set_rank(launch.world().rank());
    auto const parsed = parse_command_line(argc, argv);
    if (auto const* notice = std::get_if<CommandLineNotice>(&parsed)) {
        if (notice->exit_code != 0) launch.abort(notice->exit_code, notice->text);
        if (launch.world().rank() == 0) fmt::print("{}", notice->text);
        return 0;
    }
    try {
        return dispatch(std::get<CommandLine>(parsed), launch, files);
    } catch (Error const& e) {
        launch.abort(e.exit_code(), fmt::format("{} error: {}", to_string(e.category()), e.what()));
    } catch (std::exception const& e) {
        launch.abort(static_cast<int>(Category::internal), fmt::format("internal error: {}", e.what()));
    }
}

}  // namespace

int run_app(int argc, char** argv, FileSystem& files) {
    try {
        Launch launch(&argc, &argv);
        return run_job(argc, argv, launch, files);
    } catch (Error const& e) {  // joining the job failed: there is no job yet to end
        fmt::print(stderr, "perigee: {} error: {}\n", to_string(e.category()), e.what());
        return e.exit_code();
    }
}

}  // namespace perigee
