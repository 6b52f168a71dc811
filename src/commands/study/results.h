// What the runs of a study found: a table of their last values and a figure of one value over the steps.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "commands/study/study_file.h"
#include "curves/run_log.h"

namespace perigee::study {

/// A finished run of the grid.
struct Row {
    Run const* run = nullptr;
    std::vector<std::optional<double>> values;  ///< the last of each metric; none where the run did not log it
};
std::vector<Row> collect(Study const& study, FileSystem& files);
/// What to know before the rows are compared, a sentence each: keys of the metrics and the figure that none of the
/// rows' runs logged, and held-out losses of two runs of a seed that are of different samples.
std::vector<std::string> cautions(Study const& study, std::vector<Row> const& rows, FileSystem& files);

/// One line per run, at full precision.
std::string to_csv(Study const& study, std::vector<Row> const& rows);
/// One line per case: the mean over its seeds, and where there are several the range.
std::string to_markdown(Study const& study, std::vector<Row> const& rows);
/// One curve per case: Study::figure over the steps, the mean over its finished seeds. Empty where nothing finished.
std::vector<plot::RunLog> curves(Study const& study, std::vector<Row> const& rows, FileSystem& files);

}  // namespace perigee::study
