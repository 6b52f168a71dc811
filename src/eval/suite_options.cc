#include "eval/suite_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace perigee {

namespace {

struct SuiteName {
    Suite suite;
    std::string_view name;
};
constexpr std::array kSuites = {SuiteName{Suite::position, "position"}, SuiteName{Suite::mass, "mass"},
                                SuiteName{Suite::needle, "needle"}, SuiteName{Suite::ruler, "ruler"}};

std::vector<std::string_view> names_in(std::string_view list) {
    std::vector<std::string_view> names;
    while (!list.empty()) {
        size_t const comma = std::min(list.find(','), list.size());
        names.push_back(list.substr(0, comma));
        list.remove_prefix(std::min(comma + 1, list.size()));
    }
    return names;
}

bool is_known(std::string_view name) {
    return std::ranges::any_of(kSuites, [&](SuiteName const& known) { return known.name == name; });
}

bool rises(std::vector<int64_t> const& values) {
    return std::ranges::adjacent_find(values, std::greater_equal<>()) == values.end();
}

}  // namespace

void describe(Schema& schema, SuiteOptions& options) {
    schema
        .add("run", options.run,
             "what `perigee eval` runs instead of the held-out loss: names out of position, mass, needle and ruler, "
             "separated by commas. Short: `--suite NAMES`")
        .add("lengths", options.lengths, between(64, kMostTokens),
             "tokens of the items of needle and ruler; empty takes data.sequence_length")
        .add("depths", options.depths, between(1, 15),
             "places of a needle, evenly from the start of the text to its end")
        .add("items", options.items, between(1, 1 << 20), "items per length, depth and task")
        .choice("scorer", options.scorer, {{"forced", ScorerKind::forced}, {"generate", ScorerKind::generate}},
                "how answers are judged: forced reads prompt and answer in one pass, generate writes the answer token "
                "by token, with the same verdict and far more slowly")
        .add("tokens", options.tokens,
             "also writes the tokens of every item's prompt and answer to suites.jsonl, so that another program can "
             "judge a model by the same items")
        .add(
            "position_edges", options.position_edges, between(1, kMostTokens),
            "positions at which the bins of suite position end, rising; empty: the second half of data.sequence_length "
            "is the last bin, the second half of what is left the one before, and so on")
        .add("far_context", options.far_context, between(1, 1 << 10),
             "suite position: a token repeats where the tokens that it is predicted from, so many of them, occurred "
             "before in its document")
        .add("far_distance", options.far_distance, between(1, kMostTokens),
             "suite position: it repeats far away where they last occurred at least so many tokens before")
        .add("queries", options.queries, between(1, 1 << 20),
             "suite mass: queries of each sample, evenly over those that have more past blocks than attention.top_k - "
             "1");
}

std::vector<std::string> problems(SuiteOptions const& options) {
    std::vector<std::string> found;
    for (std::string_view const name : names_in(options.run))
        if (!is_known(name))
            found.push_back(
                fmt::format("run: no suite is called \"{}\"; there are position, mass, needle and ruler", name));
    if (!rises(options.position_edges)) found.push_back("position_edges: each must be larger than the one before");
    if (!rises(options.lengths)) found.push_back("lengths: each must be larger than the one before");
    return found;
}

std::vector<Suite> suites_of(SuiteOptions const& options) {
    auto const names = names_in(options.run);
    std::vector<Suite> suites;
    for (SuiteName const& known : kSuites)
        if (std::ranges::find(names, known.name) != names.end()) suites.push_back(known.suite);
    return suites;
}

std::string to_string(Suite suite) { return std::string(std::ranges::find(kSuites, suite, &SuiteName::suite)->name); }

bool asks_for(SuiteOptions const& options, Suite suite) {
    auto const suites = suites_of(options);
    return std::ranges::find(suites, suite) != suites.end();
}

}  // namespace perigee
