#include "app/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config.h"

namespace perigee {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::variant<CommandLine, CommandLineNotice> parse(std::vector<char const*> arguments) {
    arguments.insert(arguments.begin(), "perigee");
    return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}
CommandLine accepted(std::vector<char const*> const& arguments) {
    auto const parsed = parse(arguments);
    if (auto const* notice = std::get_if<CommandLineNotice>(&parsed)) ADD_FAILURE() << notice->text;
    auto const* line = std::get_if<CommandLine>(&parsed);
    return line ? *line : CommandLine{};
}
CommandLineNotice notice(std::vector<char const*> const& arguments) {
    auto const parsed = parse(arguments);
    auto const* found = std::get_if<CommandLineNotice>(&parsed);
    return found ? *found : CommandLineNotice{"accepted", -1};
}

TEST(CommandLine, NamesCommandConfigurationAndOverridesInOrder) {
    auto const line =
        accepted({"train", "a.yaml", "optimizer.lr=-1e-3", "attention.full_layers=[0, 1]", "generate.prompt=a=b"});
    EXPECT_EQ(line.command, Command::train);
    EXPECT_EQ(line.config, "a.yaml");
    EXPECT_THAT(line.overrides,
                ElementsAre("optimizer.lr=-1e-3", "attention.full_layers=[0, 1]", "generate.prompt=a=b"));
    EXPECT_EQ(accepted({"eval", "a.yaml"}).command, Command::eval);
    EXPECT_EQ(accepted({"generate", "a.yaml"}).command, Command::generate);
    EXPECT_EQ(accepted({"check", "a.yaml"}).command, Command::check);
}

TEST(CommandLine, FlagsBecomeOverridesThatComeLast) {
    auto const line = accepted({"generate", "--prompt", "It's: \"yes\" #1\n", "a.yaml", "--max-tokens=7", "seed=1"});
    EXPECT_EQ(line.config, "a.yaml");
    EXPECT_THAT(line.overrides,
                ElementsAre("seed=1", "generate.prompt=\"It's: \\\"yes\\\" #1\\n\"", "generate.max_tokens=7"));
    auto const options = parse_config("seed: 2\n", "f.yaml", line.overrides);
    EXPECT_EQ(options.generate.prompt, "It's: \"yes\" #1\n");
    EXPECT_EQ(options.generate.max_tokens, 7);
    EXPECT_EQ(options.seed, 1);
    EXPECT_THAT(accepted({"train", "a.yaml", "--mock-data"}).overrides, ElementsAre("data.mock_data=true"));
}

TEST(CommandLine, CheckTakesTheRanksToPlanFor) {
    EXPECT_EQ(accepted({"check", "a.yaml"}).world_size, 0);
    EXPECT_EQ(accepted({"check", "a.yaml", "--world-size", "64"}).world_size, 64);
    EXPECT_EQ(notice({"check", "a.yaml", "--world-size", "0"}).exit_code, 2);
    EXPECT_EQ(notice({"train", "a.yaml", "--world-size", "2"}).exit_code, 2);
}

TEST(CommandLine, HelpAndVersionAreNoMistakes) {
    EXPECT_EQ(notice({"--version"}).exit_code, 0);
    EXPECT_THAT(notice({"--version"}).text, ::testing::MatchesRegex("perigee [0-9]+\\.[0-9]+\\.[0-9]+\n"));
    EXPECT_EQ(notice({"--help"}).exit_code, 0);
    for (char const* const command : {"train", "eval", "generate", "check"}) {
        EXPECT_THAT(notice({"--help"}).text, HasSubstr(command));
        EXPECT_EQ(notice({command, "--help"}).exit_code, 0);
        EXPECT_THAT(notice({command, "--help"}).text, HasSubstr("CONFIG"));
    }
    EXPECT_THAT(notice({"generate", "--help"}).text, HasSubstr("--prompt"));
}

TEST(CommandLine, MistakesAreNamedAndEndWithTwo) {
    for (auto const& [arguments, part] : std::vector<std::pair<std::vector<char const*>, char const*>>{
             {{}, "subcommand"},
             {{"trian", "a.yaml"}, "trian"},
             {{"train"}, "CONFIG"},
             {{"train", "a.yaml", "--fast"}, "--fast"},
             {{"generate", "a.yaml", "--max-tokens", "many"}, "many"},
             {{"generate", "a.yaml", "--prompt"}, "--prompt"}}) {
        auto const said = notice(arguments);
        EXPECT_EQ(said.exit_code, 2);
        EXPECT_THAT(said.text, HasSubstr(part));
    }
}

}  // namespace
}  // namespace perigee
