#include "eval/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "eval/position.h"

namespace perigee {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> lines(std::string const& text) {
    std::vector<std::string> found;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) found.push_back(line);
    return found;
}

std::vector<Measurement> needle_grid() {
    std::vector<Measurement> grid;
    for (auto const* task : {"number", "words", "uuid"})
        for (int64_t const length : {131072, 16777216})
            for (int64_t d = 0; d < 15; ++d)
                for (int64_t i = 0; i < 4; ++i)
                    grid.push_back({.suite = "needle",
                                    .step = 123456,
                                    .attention = "sink_nearest + 2 full",
                                    .task = task,
                                    .length = length,
                                    .number = i,
                                    .weight = 8,
                                    .nll = 1,
                                    .depth = static_cast<double>(d) / 14,
                                    .correct = 8,
                                    .passed = i < (d == 14 ? 4 : 1),
                                    .scorer = "forced"});
    return grid;
}

TEST(Measurement, IsOneFlatJsonObjectWithoutWhatDoesNotApply) {
    auto const item = nlohmann::json::parse(to_json(needle_grid()[15]));
    EXPECT_EQ(item, nlohmann::json::parse(R"({"suite": "needle", "step": 123456, "attention": "sink_nearest + 2 full",
        "task": "number", "length": 131072, "number": 3, "depth": 0.21428571428571427, "scorer": "forced",
        "weight": 8.0, "nll": 1.0, "correct": 8, "passed": false})"));
    Measurement with_tokens = needle_grid()[15];
    with_tokens.prompt = {5, 0, 7}, with_tokens.answer = {49'151};
    auto expected = item;
    expected["prompt"] = {5, 0, 7}, expected["answer"] = {49'151};
    EXPECT_EQ(nlohmann::json::parse(to_json(with_tokens)), expected);
    Measurement const bin{.suite = "position",
                          .step = 2,
                          .attention = "moba",
                          .task = "far",
                          .length = 64,
                          .number = 7,
                          .weight = 2.5,
                          .nll = std::numeric_limits<double>::quiet_NaN(),
                          .begin = 16,
                          .end = 32,
                          .bytes = 5.0};
    EXPECT_EQ(nlohmann::json::parse(to_json(bin)),
              nlohmann::json::parse(R"({"suite": "position", "step": 2, "attention": "moba", "task": "far",
        "length": 64, "number": 7, "weight": 2.5, "nll": null, "begin": 16, "end": 32, "bytes": 5.0})"));
}

TEST(NeedleTable, FitsATerminalAndShowsShares) {
    auto const text = lines(needle_table(needle_grid()));
    ASSERT_EQ(text.size(), 2u + 6u);
    for (std::string const& line : text) EXPECT_LE(line.size(), 79u) << line;
    EXPECT_THAT(text[2], HasSubstr("number    131072 |  25  25"));
    EXPECT_TRUE(text[2].ends_with("  25 100"));
    EXPECT_EQ(needle_table({}), "");
}

TEST(NeedleTable, ShowsAHundredOnlyWhereAllPass) {
    std::vector<Measurement> all;
    for (auto const& [length, passed] : {std::pair{1, 0}, {2, 1}, {3, 299}, {4, 300}})
        for (int64_t i = 0; i < 300; ++i)
            all.push_back({.suite = "needle", .task = "uuid", .length = length, .depth = 0.5, .passed = i < passed});
    auto const text = lines(needle_table(all));
    ASSERT_EQ(text.size(), 6u);
    for (auto const& [line, shown] : {std::pair{2, "   0"}, {3, "   1"}, {4, "  99"}, {5, " 100"}})
        EXPECT_TRUE(text[static_cast<size_t>(line)].ends_with(shown)) << text[static_cast<size_t>(line)];
}

TEST(RulerTable, FitsATerminalAndShowsTheMean) {
    std::vector<Measurement> all;
    int64_t passed = 0;
    for (auto const* task : {"single", "keys", "values", "variables", "common", "frequent"}) {
        for (int64_t i = 0; i < 4; ++i)
            all.push_back({.suite = "ruler", .attention = "moba", .task = task, .length = 4096, .passed = i < passed});
        passed = std::min<int64_t>(passed + 1, 4);
    }
    auto const text = lines(ruler_table(all));
    ASSERT_EQ(text.size(), 3u);
    for (std::string const& line : text) EXPECT_LE(line.size(), 79u) << line;
    EXPECT_EQ(text[2], "    4096 |         0        25        50        75       100       100    58");
}

TEST(PositionTable, AddsClassesUpAndComparesTwoKindsOfAttention) {
    std::vector<Measurement> all;
    for (auto const* attention : {"moba + 1 full", "full"})
        for (int64_t sample = 0; sample < 2; ++sample)
            for (auto const& [task, nll] : {std::pair{"fresh", 6.0}, {"far", 1.0}})
                for (int64_t const begin : {0, 1048576})
                    all.push_back({.suite = "position",
                                   .step = 9,
                                   .attention = attention,
                                   .task = task,
                                   .length = 2097152,
                                   .number = sample,
                                   .weight = task == std::string("far") ? 1.0 : 3.0,
                                   .nll = attention == std::string("full") ? nll : 2 * nll,
                                   .begin = begin,
                                   .end = begin + 1048576,
                                   .bytes = 7.0});
    auto const text = lines(position_table(all));
    ASSERT_EQ(text.size(), 7u);
    for (std::string const& line : text) EXPECT_LE(line.size(), 79u) << line;
    EXPECT_EQ(text[2], fmt::format("full: loss 1.75000, perplexity {:.3f}, {:.4f} bits per byte", std::exp(1.75),
                                   7 / std::log(2.0) / 14));
    EXPECT_EQ(text[6], "1048576-2097151   3.5000   1.7500   1.7500 |  25.0%   2.0000   1.0000   1.0000");
    std::vector<Measurement> const one(all.begin() + 8, all.end());
    EXPECT_THAT(lines(position_table(one)).back(), ::testing::EndsWith("   1.7500 |  25.0%   1.0000"));
}

TEST(HeatMap, HasACellForEveryPlaceOfTheGrid) {
    std::string const svg = needle_heat_map(needle_grid(), "Needles");
    EXPECT_TRUE(svg.starts_with("<svg "));
    EXPECT_TRUE(svg.ends_with("</svg>\n"));
    auto const count = [&](std::string const& what) {
        int64_t n = 0;
        for (size_t at = svg.find(what); at != svg.npos; at = svg.find(what, at + 1)) ++n;
        return n;
    };
    EXPECT_EQ(count("<rect "), 1 + 3 * 2 * 15);
    EXPECT_EQ(count(">25</text>"), 3 * 2 * 14);
    EXPECT_EQ(count(">100</text>"), 3 * 2);
    EXPECT_EQ(count("<text"), count("</text>"));
    EXPECT_EQ(count(">128K<"), 3);
}

}  // namespace
}  // namespace perigee
