// A study: one YAML file that says which runs to compare. Its sections:
//     output_dir   folder of the study
//     run          options of every run, as in a configuration
//     before       optional, {key: value, ...}: changes to `run` for a run that is trained first, once per seed. Every
//                  run of the grid continues from its last checkpoint. Or a list of such stages, in training order
//     arms         {name: {key: value, ...}, ...}: changes to `run` by the name of the case
//     grid         {key: [value, ...], ...}: every combination is a case; keys of the model may differ from `before`.
//                  With arms, every combination of each arm; arms or a grid may be left out
//     evaluations  optional, {name: {key: value, ...}, ...}: each run that has finished, those before the grid too, is
//                  given to `perigee eval` with these overrides, which leaves its records in the run's folder
//     seeds        [integer, ...]: every case is run with each
//     metrics      [key, ...] of metrics.jsonl: the columns of the table, with their last value
//     figure       key of metrics.jsonl that the figure shows over the steps
// The study sets seed and output_dir of every run; no other section may.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/file_system.h"

namespace perigee::study {

struct Run {
    std::string name;                   ///< of its folder
    std::vector<std::string> settings;  ///< its value for each of Study::keys; empty for what goes before or evaluates
    int64_t seed = 0;
    std::string config;            ///< complete YAML
    std::optional<size_t> before;  ///< place in Study::runs of the run it goes on from, or evaluates
    int64_t threads = 0;
    int64_t steps = 0;                        ///< of training; 0 where train.epochs decides
    std::vector<std::string> overrides = {};  ///< of an evaluation
    bool evaluates = false;
};

struct Study {
    Path output_dir;
    std::vector<std::string> keys;  ///< "arm", where there are arms; those of the grid
    std::vector<Run> runs;          ///< those that go before others come first
    std::vector<std::string> metrics;
    std::string figure;

    /// The end of a key that names it in folders and tables: its last part, or as many as tell it from the other keys
    /// and from what else names of runs say.
    std::string label(std::string const& key) const;

    Path folder(Run const& run) const { return output_dir / "runs" / run.name; }
    /// A file of the study about a run, beside its folder.
    Path file(Run const& run, std::string const& extension) const {
        return output_dir / "runs" / (run.name + extension);
    }
};

/// Every run's options are checked here, before any starts. Throws Category::config with one line per problem.
Study read_study(FileSystem& files, Path const& path);

}  // namespace perigee::study
