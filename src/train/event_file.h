// TensorBoard's event file of a run: a scalar for every number of its metrics. The format is TensorFlow's: records with
// masked CRC-32C, each a protobuf message `Event` (tensorflow/core/util/event.proto).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "train/line_file.h"

namespace perigee {

class EventFile {
  public:
    /// A new file in `folder`, which is made where it is missing. What earlier files of the folder say about `step` and
    /// later ones no longer counts.
    EventFile(FileSystem& files, Path const& folder, int64_t step);
    /// The numbers of a line of metrics.jsonl, at its `step`; what begins with `eval_` under eval/, the rest under
    /// train/. On a full disk records wait, as LineFile says.
    void append(std::string_view metrics);
    /// As LineFile::news.
    std::string news() { return file_.news(); }

  private:
    void record(std::string const& event);
    LineFile file_;
};

}  // namespace perigee
