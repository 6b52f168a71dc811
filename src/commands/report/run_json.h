// What the report's page shows of run folders, as one JSON object.
#pragma once

#include <string>
#include <vector>

#include "io/file_system.h"

namespace perigee::report {

struct Runs {
    std::string json;                   ///< of all runs; no character of it ends a script in HTML
    std::vector<std::string> warnings;  ///< of what could not be read
};

/// The series of every run, thinned to their extremes so that a page of any number of steps stays small; its config,
/// facts (run.json), suites (suites.jsonl), chosen blocks (blocks.jsonl), samples (samples.jsonl) and warnings
/// (log.txt), as far as they are there. `live` pages ask for news. Throws Category::data where a folder holds neither
/// metrics nor suites.
Runs read_runs(FileSystem& files, std::vector<std::string> const& folders, bool live);

/// The page around it: self-contained HTML.
std::string page(std::string const& json);

}  // namespace perigee::report
