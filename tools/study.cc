// Runs a grid of training runs and compares them: `study configs/studies/sparse_sft.yaml`. The file's sections are in
// tools/study/study_file.h. Safe to run again: finished runs stay, stopped ones go on, failed ones are tried again.
#include <sched.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "tools/plot/chart.h"
#include "tools/study/results.h"
#include "tools/study/runner.h"

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
    files.replace_text(study.output_dir / "table.md", table);
    files.replace_text(study.output_dir / "table.csv", to_csv(study, rows));
    if (auto const found = curves(study, rows, files); !found.empty())
        files.replace_text(study.output_dir / "figure.svg", plot::draw_svg(plot::make_chart(study.figure, found)));
    fmt::print("{}", table);
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
        fmt::print(stderr, "study: {} failed: {}{}\n", failure.run, how, failure.message);
    }
    if (!progress.failures.empty()) return static_cast<int>(Category::internal);
    return progress.stopped ? kExitPreempted : 0;
}

}  // namespace
}  // namespace perigee::study

int main(int argc, char** argv) {
    using namespace perigee;
    CLI::App app("Runs a grid of training runs and compares them", "study");
    std::string file;
    study::RunnerOptions options;
    options.program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "perigee";
    options.jobs = 0;
    app.add_option("STUDY", file, "YAML file of the study")->required();
    app.add_option("--jobs", options.jobs, "runs at once; 0: as many as there are cores or GPUs for")
        ->check(CLI::NonNegativeNumber);
    app.add_option("--gpus", options.gpus, "GPUs to share out among the runs, one each, as in 0,1,2")->delimiter(',');
    app.add_option("--perigee", options.program, "the program to run instead of the one beside this");
    CLI11_PARSE(app, argc, argv);
    try {
        return study::run(file, options, *make_file_system());
    } catch (std::exception const& error) {
        return report_failure("study", error);
    }
}
