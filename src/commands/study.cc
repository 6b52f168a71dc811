// Runs a grid of training runs and compares them: `perigee study configs/studies/sparse_sft.yaml`. The file's sections
// are in commands/study/study_file.h. Safe to run again: finished runs stay, stopped ones go on, failed ones are tried
// again.
#include <sched.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "commands/command.h"
#include "commands/number_between.h"
#include "commands/report/run_json.h"
#include "commands/study/results.h"
#include "commands/study/runner.h"
#include "curves/chart.h"

namespace perigee::study {
namespace {

int64_t usable_cores() {
    cpu_set_t mask;
    return sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
}

/// As many runs at once as there are GPUs or cores for the greediest of them.
int64_t jobs_that_fit(Study const& study, RunnerOptions const& options) {
    if (!options.gpus.empty()) return std::ssize(options.gpus);
    int64_t threads = 1;
    for (Run const& run : study.runs) threads = std::max(threads, run.threads == 0 ? usable_cores() : run.threads);
    return std::max<int64_t>(1, usable_cores() / threads);
}

void write_results(Study const& study, FileSystem& files) {
    auto const rows = collect(study, files);
    std::string const table = to_markdown(study, rows);
    auto const sentences = cautions(study, rows, files);
    std::string const notes = sentences.empty() ? "" : fmt::format("\n{}\n", fmt::join(sentences, "\n\n"));
    files.replace_text(study.output_dir / "table.md", table + notes);
    files.replace_text(study.output_dir / "table.csv", to_csv(study, rows));
    if (auto const found = curves(study, rows, files); !found.empty())
        files.replace_text(study.output_dir / "figure.svg", plot::draw_svg(plot::make_chart(study.figure, found)));
    fmt::print("{}", table);
    for (std::string const& sentence : sentences) fmt::print(stderr, "perigee: {}\n", sentence);
    std::vector<std::string> folders;
    for (Row const& row : rows) folders.push_back(study.folder(*row.run).string());
    if (folders.empty()) return;
    Path const page = study.output_dir / "report.html";
    files.replace_text(page, report::page(report::read_runs(files, folders, /*live=*/false).json));
    fmt::print("{}\n", page.string());
}

int run(Path const& file, RunnerOptions options, FileSystem& files) {
    Study const study = read_study(files, file);
    int64_t const most = jobs_that_fit(study, options);
    options.jobs = options.jobs == 0 ? most : options.gpus.empty() ? options.jobs : std::min(options.jobs, most);
    Progress const progress = run_all(study, options, files);
    write_results(study, files);
    for (Failure const& failure : progress.failures) {
        std::string const how = failure.exit_code == 0  ? ""
                                : failure.exit_code > 0 ? fmt::format("exit {}: ", failure.exit_code)
                                                        : fmt::format("signal {}: ", -failure.exit_code);
        fmt::print(stderr, "perigee: {} failed: {}{}\n", failure.run, how, failure.message);
    }
    if (!progress.failures.empty()) return static_cast<int>(Category::internal);
    return progress.stopped ? kExitPreempted : 0;
}

}  // namespace
}  // namespace perigee::study

namespace perigee {

Action declare_study(CLI::App& app) {
    struct Typed {
        std::string file;
        study::RunnerOptions runner;
    };
    auto const typed = std::make_shared<Typed>();
    typed->runner.program = std::filesystem::read_symlink("/proc/self/exe");
    typed->runner.jobs = 0;
    app.add_option("STUDY", typed->file, "YAML file of the study")->required();
    app.add_option("--jobs", typed->runner.jobs, "runs at once; 0: as many as there are cores or GPUs for")
        ->check(CLI::NonNegativeNumber);
    app.add_option("--gpus", typed->runner.gpus, "GPUs to share out among the runs, one each, as in 0,1,2")
        ->delimiter(',');
    app.add_option("--budget-minutes", typed->runner.budget_minutes,
                   "after so many minutes runs save and stop, with exit code 75; the same command goes on from there")
        ->check(number_between(0, 1e6));
    app.add_option("--only", typed->runner.only,
                   "train only the runs of this arm, or with these values in their names, and those they go on from; "
                   "repeat the option for more: --only full --only arm=gate,seed=1")
        ->allow_extra_args(false);
    app.add_option("--perigee", typed->runner.program, "the program that trains, instead of this one");
    return [typed](FileSystem& files) { return study::run(typed->file, typed->runner, files); };
}

}  // namespace perigee
