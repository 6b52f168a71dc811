// Every configuration of bad_yaml.txt is refused with exactly the message that stands beside it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "config/sample_options.h"

namespace perigee::testing {
namespace {

struct BadCase {
    int line = 0;
    std::string yaml;
    std::vector<std::string> overrides;
    std::string expected;
};

std::string unescaped(std::string const& line) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) {
        if (line[i] != '\\') {
            text += line[i];
            continue;
        }
        char const kind = line.at(++i);
        if (kind == 'x') {
            text += static_cast<char>(std::stoi(line.substr(i + 1, 2), nullptr, 16));
            i += 2;
        } else if (kind != 'e') {
            text += kind == 't' ? '\t' : kind;
        }
    }
    return text;
}

std::vector<BadCase> bad_cases() {
    std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "bad_yaml.txt");
    std::vector<BadCase> cases;
    BadCase current;
    int number = 0;
    for (std::string line; std::getline(file, line);) {
        ++number;
        if (cases.empty() && current.yaml.empty() && line.starts_with("# ")) continue;
        if (line.empty()) {
            if (!current.expected.empty()) cases.push_back(current);
            current = {};
        } else if (line.starts_with("=> ")) {
            bool const placed = current.overrides.empty();
            if (!current.expected.empty()) current.expected += "\n";
            current.expected += (placed ? "f.yaml:" : "") + line.substr(3);
        } else if (line.starts_with("$ ")) {
            current.yaml = "steps: 5\n";
            current.overrides.push_back(line.substr(2));
        } else {
            if (current.yaml.empty()) current.line = number;
            current.yaml += unescaped(line) + "\n";
        }
    }
    return cases;
}

std::string refusal(std::string const& yaml, std::vector<std::string> const& overrides) {
    try {
        read_sample(yaml, overrides);
        return "accepted";
    } catch (Error const& error) {
        EXPECT_EQ(error.category(), Category::config);
        return error.what();
    }
}

TEST(BadYaml, IsRefusedWithEverythingThatIsWrongAndWhere) {
    auto const cases = bad_cases();
    ASSERT_GE(cases.size(), 150u);
    for (BadCase const& bad : cases) {
        EXPECT_EQ(refusal(bad.yaml, bad.overrides), bad.expected) << "bad_yaml.txt:" << bad.line << "\n" << bad.yaml;
    }
}

TEST(BadYaml, MistakesOfTheFileComeFirstThenThoseOfTheCommandLineInOrder) {
    EXPECT_EQ(refusal("shuffle: 1\nsteps: x\n", {"mode=x", "steps=0", "steps=4"}),
              "f.yaml:1:10: shuffle: expected true or false, found the integer 1; write true\n"
              "f.yaml:2:8: steps: expected an integer, found the text \"x\"\n"
              "command line: 'mode=x': mode: expected one of fast, safe, found the text \"x\"\n"
              "command line: 'steps=0': steps must be between 1 and 1000000, found 0");
}

TEST(BadYaml, NothingOfAValueOnTheCommandLineIsTakenForAComment) {
    for (char const* const value : {"steps=4 # x", "steps= # 4", "steps=#4", "steps=4\n5", "steps=[4]\t# x",
                                    "mode=\"fast\" # x", "mode='it''s' # x"})
        EXPECT_THAT(refusal("steps: 4\n", {value}), ::testing::HasSubstr("must be in quotes")) << value;
    for (char const* const value : {"mode=a#b", "mode='x # y'", "mode=|\n x # y", "mode=[x,\n y]"})
        EXPECT_THAT(refusal("steps: 4\n", {value}), ::testing::Not(::testing::HasSubstr("in quotes"))) << value;
    EXPECT_EQ(refusal("steps: 4\n", {"mode='x # y'"}),
              "command line: 'mode='x # y'': mode: expected one of fast, safe, found the quoted text \"x # y\"");
}

TEST(BadYaml, AnEmptySectionOnTheCommandLineIsNotTakenForAReset) {
    EXPECT_EQ(refusal("steps: 4\n", {"full_layers={}", "optimizer={}"}),
              "command line: 'full_layers={}': an empty section changes nothing; name the keys to change\n"
              "command line: 'optimizer={}': an empty section changes nothing; name the keys to change");
    EXPECT_EQ(refusal("steps: 4\n", {"steps={}"}).find("changes nothing"), std::string::npos);
}

TEST(BadYaml, IsReportedByPlaceEvenWhereTheSchemaReadsInAnotherOrder) {
    std::string const yaml = "full_layers: &x {last: -1}\nsteps: 0\noptimizer: *x\n";
    EXPECT_EQ(refusal(yaml, {}),
              "f.yaml:1:18: unknown key \"last\" in optimizer; did you mean \"full_layers.last\"?\n"
              "f.yaml:1:24: full_layers.last must be at least 0, found -1\n"
              "f.yaml:2:8: steps must be between 1 and 1000000, found 0");
}

TEST(BadYaml, WithNulBytesOrLoneCarriageReturnsIsRefused) {
    EXPECT_EQ(refusal(std::string("steps: 5\0", 9), {}), "f.yaml:1:9: control character 0x00 is not allowed");
    EXPECT_EQ(refusal("steps: 5\rmode: safe", {}), "f.yaml:1:9: control character 0x0d is not allowed");
}

TEST(BadYaml, NestedDeeperThanTheCapIsRefusedHoweverDeepItGoes) {
    std::string const at_cap = "full_layers: " + std::string(31, '[') + std::string(31, ']');
    EXPECT_THAT(refusal(at_cap, {}), ::testing::HasSubstr("expected an integer, found a list"));
    for (size_t const depth : {33, 1000, 1000000}) {
        std::string const deep = std::string(depth, '[') + std::string(depth < 1000 ? depth : 0, ']');
        EXPECT_THAT(refusal("full_layers: " + deep, {}), ::testing::HasSubstr(": nested more than 32 levels deep"));
        EXPECT_THAT(refusal("steps: 5", {"steps=" + deep}), ::testing::HasSubstr("': nested more than 32 levels deep"));
    }
    EXPECT_THAT(refusal(std::string(1000000, '{'), {}), ::testing::HasSubstr(": nested more than 32 levels deep"));
    std::string dashes;
    for (int i = 0; i < 400000; ++i) dashes += "- ";
    EXPECT_THAT(refusal(dashes, {}), ::testing::HasSubstr(": nested more than 32 levels deep"));
}

TEST(BadYaml, LargerThanTheCapIsRefusedUnread) {
    std::string const comment = "steps: 5 #";
    std::string const at_cap = comment + std::string((size_t{1} << 20) - comment.size(), 'x');
    EXPECT_EQ(refusal(at_cap, {}), "accepted");
    EXPECT_EQ(refusal(at_cap + "x", {}), "f.yaml:1:1: has more than 1048576 bytes, the most a configuration may have");
}

TEST(BadYaml, WithTooManyAliasesIsRefused) {
    std::string aliases = "full_layers: [&a 1";
    for (int i = 0; i < 100; ++i) aliases += ", *a";
    EXPECT_EQ(refusal(aliases + "]", {}), "accepted");
    EXPECT_THAT(refusal(aliases + ", *a]", {}), ::testing::HasSubstr("more than 100 aliases"));
}

TEST(BadYaml, WithAliasesThatMultiplyCostsNothing) {
    std::string bomb = "steps: 5\ntrain: &x0 [{path: a}]\n";
    for (int i = 1; i <= 12; ++i) {
        std::string const before = "*x" + std::to_string(i - 1);
        bomb += "k" + std::to_string(i) + ": &x" + std::to_string(i) + " [" + before;
        for (int k = 0; k < 7; ++k) bomb += ", " + before;
        bomb += "]\n";
    }
    EXPECT_THAT(refusal(bomb + "optimizer: *x12\n", {}),
                ::testing::HasSubstr("expected a section of keys, found a list"));
}

TEST(BadYaml, WithCountlessMistakesReportsTheFirstHundred) {
    std::string yaml;
    for (int i = 0; i < 50000; ++i) yaml += "key_" + std::to_string(i) + ": 1\n";
    std::string const message = refusal(yaml, {});
    EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 100);
    EXPECT_THAT(message, ::testing::EndsWith("f.yaml: reporting stops after 100 problems"));
}

}  // namespace
}  // namespace perigee::testing
