// The long-context suites over the model of a session: docs/evaluation.md.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eval/item.h"
#include "eval/results.h"
#include "train/session.h"

namespace perigee {

struct SuiteResults {
    std::vector<Measurement> measurements;  ///< in the order of the suites; the same on every rank and layout
    std::string tables;                     ///< for people
    std::string heat_map;                   ///< SVG, where suite needle ran
};

/// "moba", "full", "moba + 1 full"; rules other than the gate by their name.
std::string attention_name(std::span<Selection const> selections);

/// Runs what eval.suites.run names. `before_forward` is called before each forward. Collective. Throws
/// Category::config where an item does not fit its length, and where the data's tokens are not the tokenizer's.
SuiteResults run_suites(Session& session, int64_t step, std::span<Selection const> selections,
                        std::function<void()> const& before_forward);

/// The suites' files in a run folder: suites.jsonl, which grows, and needle_ATTENTION.svg. Held by one job at a time.
class SuiteFiles {
  public:
    /// Throws Category::config where the folder cannot be written or another job evaluates in it.
    SuiteFiles(FileSystem& files, Path output_dir);
    /// Every record says where in the file those of its evaluation begin, and which of the overrides can change
    /// results.
    void write(SuiteResults const& results, std::vector<std::string> const& overrides);

  private:
    FileSystem* files_;
    Path folder_;
    std::unique_ptr<FileLock> lock_;
};

}  // namespace perigee
