// Runs the runs of a study as `perigee train` processes, several at once. What a run needs and leaves is in files:
//     runs/NAME.yaml      from its start on, its complete configuration: `perigee train` of it is the run
//     runs/NAME.overrides of an evaluation: the options that it gives `perigee eval` besides, one a line
//     runs/NAME/          its run folder
//     runs/NAME.out       what it printed
//     runs/NAME.finished  there once it has finished; such a run is never started again
#pragma once

#include <string>
#include <vector>

#include "commands/study/study_file.h"

namespace perigee::study {

struct RunnerOptions {
    Path program;                   ///< perigee
    int64_t jobs = 1;               ///< runs at once
    std::vector<std::string> gpus;  ///< unless empty, a job has one of these to itself, through CUDA_VISIBLE_DEVICES
    double budget_minutes = 0;      ///< after which the runs save and stop; 0: none
    /// Unless empty, runs whose names have one of these between whole values, and what they go on from: "gate",
    /// "seed=1".
    std::vector<std::string> only;
};

struct Failure {
    std::string run;
    int exit_code = 0;    ///< negative: the signal that ended it
    std::string message;  ///< its last words
};

struct Progress {
    std::vector<Failure> failures;
    bool stopped = false;  ///< by SIGINT, SIGTERM or the end of the budget; the runs have saved
};

/// Starts every run that has not finished, those that others go on from first, and waits for all. A run that was
/// stopped before goes on from its own last checkpoint. A failing run does not keep the others from running, but for
/// those that go on from it. Throws Category::config, before any starts, where a run's files belong to other options
/// than it has now, where data, a tokenizer or weights that an unfinished one reads are not there, or where no run has
/// a text of `only`.
Progress run_all(Study const& study, RunnerOptions const& options, FileSystem& files);

bool is_finished(Study const& study, Run const& run, FileSystem const& files);

}  // namespace perigee::study
