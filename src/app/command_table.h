// Every command of `perigee`, once: what --help lists, what the command line accepts, and what runs.
#pragma once

#include <array>
#include <variant>

#include "app/command_line.h"
#include "app/completion.h"
#include "commands/command.h"

namespace perigee {

struct CommandRow {
    char const* group;  ///< heading in --help; rows of a group stand together
    char const* name;
    char const* help;                                   ///< one line: 62 characters fit
    std::variant<Command, Action (*)(CLI::App&)> what;  ///< of the ranks of a job, or of one process
};

inline constexpr std::array kCommands = {
    CommandRow{"First run", "quickstart", "Train a small model on this program's own manual", declare_quickstart},
    CommandRow{"Train", "train", "Train a model, or resume a run that was stopped", Command::train},
    CommandRow{"Train", "eval", "Loss of a checkpoint on held-out data, or long-context suites", Command::eval},
    CommandRow{"Train", "generate", "Continue texts with a checkpoint, or chat with it", Command::generate},
    CommandRow{"Train", "serve", "Answer requests by HTTP, in the shape of OpenAI's API", Command::serve},
    CommandRow{"Train", "check", "Show options, layout, memory and FLOPs; needs no data", Command::check},
    CommandRow{"Data", "tokenize", "Turn text or conversations into tokens", declare_tokenize},
    CommandRow{"Data", "view", "Show the samples of one step and which tokens carry loss", declare_view},
    CommandRow{"Weights", "convert", "Hugging Face folder to checkpoint, or back", declare_convert},
    CommandRow{"Weights", "checkpoint", "Inspect, verify or compare checkpoints", declare_checkpoint},
    CommandRow{"Results", "plot", "Draw the curves of runs on the terminal or as SVG", declare_plot},
    CommandRow{"Results", "report", "One page on runs: curves, time, memory, configs, warnings", declare_report},
    CommandRow{"Results", "study", "Train a grid of runs and compare them", declare_study},
    CommandRow{"Results", "bench", "Measure the speed of training steps", declare_bench},
    CommandRow{"Set-up", "calibrate", "Measure a GPU's rates, for check --device", declare_calibrate},
    CommandRow{"Set-up", "completion", "Print a script that completes commands and keys in a shell",
               declare_completion},
};

}  // namespace perigee
