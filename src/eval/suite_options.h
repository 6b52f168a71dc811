// Which long-context suites `perigee eval` runs, and how large they are. docs/evaluation.md describes the suites.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"

namespace perigee {

enum class Suite { position, mass, needle, ruler };
enum class ScorerKind { forced, generate };

struct SuiteOptions {
    std::string run = "";               ///< names of suites, separated by commas
    std::vector<int64_t> lengths = {};  ///< of items; empty: data.sequence_length
    int64_t depths = 11;                ///< of a needle, evenly from the start to the end of the text
    int64_t items = 20;                 ///< per length, depth and task
    ScorerKind scorer = ScorerKind::forced;
    bool tokens = false;                       ///< records name the tokens of each item
    std::vector<int64_t> position_edges = {};  ///< where bins end; empty: halves, quarters, ... of the sequence length
    int64_t far_context = 6;                   ///< tokens that must have occurred before
    int64_t far_distance = 2048;               ///< so many tokens before, at least
    int64_t queries = 64;                      ///< of each sample, for suite mass
};
void describe(Schema& schema, SuiteOptions& options);
/// Keys are given as under this section; empty when all is well.
std::vector<std::string> problems(SuiteOptions const& options);

/// Those that `run` names, in the order of the enumeration. Unknown names are left to problems().
std::vector<Suite> suites_of(SuiteOptions const& options);
bool asks_for(SuiteOptions const& options, Suite suite);
/// "position"
std::string to_string(Suite suite);

}  // namespace perigee
