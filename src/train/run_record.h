// What a job is, in run.json of the run's folder: program, hardware, ranks, plan of memory, resolved options.
#pragma once

#include <optional>
#include <string>

#include "train/session.h"

namespace perigee {

/// What the program knows of the job that the options do not say.
struct Launched {
    std::string program = {};                          ///< name, version and commit
    std::optional<int64_t> memory_planned_bytes = {};  ///< of a rank's device, for a step
    int64_t arena_bytes = 0;                           ///< of those, what the arena of a GPU takes; 0: not known
};

/// The parts of the record that the trainer knows.
struct JobFacts {
    std::string run_id;
    std::string layout;
    std::string data;
    int64_t first_step = 0;  ///< steps done before this job
};

/// "2 x NVIDIA H200 on 1 host (node7)", of all ranks. Collective; the same on every rank.
std::string hardware(Session& session);

/// One JSON object, indented. `hardware` of the session's ranks.
std::string run_record(Session& session, Launched const& launched, JobFacts const& job, std::string const& hardware);

}  // namespace perigee
