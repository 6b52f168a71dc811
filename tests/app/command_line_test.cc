#include "app/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "app/command_table.h"
#include "config/config.h"
#include "support/memory_file_system.h"

namespace perigee {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Parsed parse(std::vector<char const*> arguments) {
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

TEST(CommandLine, SuitesAreAShortOverrideOfEval) {
    auto const line = accepted({"eval", "a.yaml", "--suite", "position,needle", "eval.suites.items=3"});
    EXPECT_EQ(line.command, Command::eval);
    RunOptions options;
    apply_overrides(options, line.overrides);
    EXPECT_EQ(options.eval.suites.run, "position,needle");
    EXPECT_EQ(options.eval.suites.items, 3);
    EXPECT_EQ(notice({"train", "a.yaml", "--suite", "needle"}).exit_code, 2);
}

TEST(CommandLine, NumbersOfOptionsAreFinite) {
    for (std::vector<char const*> arguments : {std::vector{"study", "a.yaml", "--budget-minutes"},
                                               {"convert", "a", "b", "--shard-gb"},
                                               {"tokenize", "a", "-o", "b", "--save-every"},
                                               {"calibrate", "a", "--seconds"}})
        for (char const* const value : {"nan", "inf", "-1", "1e300", "x", ""}) {
            std::string const option = arguments.back();
            arguments.push_back(value);
            EXPECT_EQ(notice(arguments).exit_code, 2) << option << ' ' << value;
            EXPECT_THAT(notice(arguments).text, HasSubstr(option + ": must be a number between")) << value;
            arguments.pop_back();
        }
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

TEST(CommandLine, CheckTellsTheFolderOfWhateverTrainTakes) {
    auto const line = accepted({"check", "--folder", "--mock-data", "a.yaml", "output_dir=x"});
    EXPECT_TRUE(line.folder);
    EXPECT_THAT(line.overrides, ElementsAre("output_dir=x", "data.mock_data=true"));
}

TEST(CommandLine, ServerAndChatAreShortForKeys) {
    auto const server = accepted({"serve", "a.yaml", "--port", "0", "--host", "0.0.0.0"});
    EXPECT_EQ(server.command, Command::serve);
    RunOptions const options = parse_config("seed: 2\n", "a.yaml", server.overrides);
    EXPECT_EQ(options.serve.port, 0);
    EXPECT_EQ(options.serve.host, "0.0.0.0");
    EXPECT_EQ(parse_config("seed: 2\n", "a.yaml", {}).serve.host, "127.0.0.1");
    auto const chat = accepted({"generate", "a.yaml", "--chat"});
    EXPECT_TRUE(parse_config("seed: 2\n", "a.yaml", chat.overrides).generate.chat);
    EXPECT_EQ(notice({"serve"}).exit_code, 2);
}

TEST(CommandLine, HelpAndVersionAreNoMistakes) {
    EXPECT_EQ(notice({"--version"}).exit_code, 0);
    EXPECT_THAT(notice({"--version"}).text, ::testing::MatchesRegex("perigee [0-9]+\\.[0-9]+\\.[0-9]+\n"));
    EXPECT_EQ(notice({"--help"}).exit_code, 0);
    for (CommandRow const& row : kCommands) {
        EXPECT_THAT(notice({"--help"}).text, HasSubstr(fmt::format("{}:\n", row.group)));
        EXPECT_THAT(notice({"--help"}).text, HasSubstr(fmt::format("\n  {} ", row.name)));
        EXPECT_EQ(notice({row.name, "--help"}).exit_code, 0);
        EXPECT_THAT(notice({row.name, "--help"}).text, HasSubstr(row.help));
        EXPECT_THAT(notice({row.name, "--help"}).text, HasSubstr(fmt::format("perigee {} [OPTIONS]", row.name)));
    }
    EXPECT_THAT(notice({"generate", "--help"}).text, HasSubstr("--prompt"));
}

TEST(CommandLine, HelpIsAtMost79ColumnsWide) {
    std::vector<std::string> texts = {notice({"--help"}).text};
    for (CommandRow const& row : kCommands) texts.push_back(notice({row.name, "--help"}).text);
    for (char const* const what : {"inspect", "verify", "diff"})
        texts.push_back(notice({"checkpoint", what, "--help"}).text);
    for (std::string const& text : texts) {
        std::istringstream lines(text);
        for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 79u) << line;
    }
}

TEST(CommandLine, ACommandOfOneProcessIsReadyToRun) {
    auto const parsed = parse({"plot", "runs/a", "--key", "lr"});
    auto const* command = std::get_if<LocalCommand>(&parsed);
    ASSERT_NE(command, nullptr);
    EXPECT_EQ(command->name, "plot");
    testing::MemoryFileSystem files;
    try {
        command->action(files);
        ADD_FAILURE() << "there are no runs";
    } catch (Error const& error) {
        EXPECT_EQ(error.category(), Category::data);
        EXPECT_THAT(error.what(), HasSubstr("runs/a: no such file"));
    }
    EXPECT_EQ(notice({"plot"}).exit_code, 2);
    EXPECT_EQ(notice({"plot", "runs/a", "--width", "0"}).exit_code, 2);
}

TEST(CommandLine, MistakesAreNamedAndEndWithTwo) {
    for (auto const& [arguments, part] : std::vector<std::pair<std::vector<char const*>, char const*>>{
             {{}, "subcommand"},
             {{"trian", "a.yaml"}, "trian"},
             {{"train"}, "CONFIG"},
             {{"plto", "a"}, "did you mean \"plot\"?"},
             {{"checkpoint", "show", "a"}, "subcommand"},
             {{"train", "a.yaml", "--fast"}, "--fast"},
             {{"train", "a.yaml", "--train.steps=5"}, "have no dashes, and their values follow after ="},
             {{"generate", "a.yaml", "--max-tokens", "many"}, "many"},
             {{"generate", "a.yaml", "--prompt"}, "--prompt"}}) {
        auto const said = notice(arguments);
        EXPECT_EQ(said.exit_code, 2);
        EXPECT_THAT(said.text, HasSubstr(part));
    }
}

}  // namespace
}  // namespace perigee
