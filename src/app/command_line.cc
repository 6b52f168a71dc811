#include "app/command_line.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>

#include "app/command_app.h"
#include "app/command_table.h"
#include "app/help_formatter.h"
#include "base/error.h"
#include "config/config.h"
#include "config/findings.h"

namespace perigee {
namespace {

void declare_job(CLI::App* const sub, Command command, CommandApp& typed) {
    sub->add_option("CONFIG", typed.job.config, "YAML file; docs/config.md lists its keys")->required();
    sub->add_option("overrides", typed.job.overrides, "Override the file, as in optimizer.lr=1e-3 data.train.0.path=x")
        ->type_name("key=value");
    if (command == Command::check) {
        sub->add_option("--world-size", typed.job.world_size, "Ranks to plan for, instead of as many as run this")
            ->check(CLI::Range(1, 1 << 20));
        sub->add_option("--device", typed.job.device, "Also the time of a step on h200, h100, a100, or a file's rates")
            ->type_name("NAME|FILE");
        sub->add_flag("--fit", typed.job.fit, "Print the fastest layouts that fit, as YAML to paste; --device or h200");
        sub->add_flag("--folder", typed.job.folder, "Print the run's folder, and nothing else");
    }
    sub->add_flag("--mock-data", typed.mock_data, "Short for data.mock_data=true");
    if (command == Command::eval)
        sub->add_option("--suite", typed.suite, "Short for eval.suites.run=NAMES: position, mass, needle, ruler")
            ->type_name("NAMES");
    if (command == Command::generate) {
        sub->add_option("--system", typed.system, "Short for generate.system=TEXT; TEXT is taken as it is");
        sub->add_option("--prompt", typed.prompt, "Short for generate.prompt=TEXT; TEXT is taken as it is");
        sub->add_option("--input", typed.input, "Short for generate.input=FILE: prompts, one JSON object a line")
            ->type_name("FILE");
        sub->add_option("--output", typed.output, "Short for generate.output=FILE: their answers")->type_name("FILE");
        sub->add_option("--max-tokens", typed.max_tokens, "Short for generate.max_tokens=N");
        sub->add_flag("--chat", typed.chat, "Short for generate.chat=true: a conversation on the terminal");
    }
    if (command == Command::serve) {
        sub->add_option("--host", typed.host, "Short for serve.host=ADDRESS: 0.0.0.0 for every network")
            ->type_name("ADDRESS");
        sub->add_option("--port", typed.port, "Short for serve.port=N; 0: any that is free");
    }
    sub->callback([&typed, sub, command] {
        typed.job.command = command;
        auto& overrides = typed.job.overrides;
        if (typed.mock_data) overrides.push_back("data.mock_data=true");
        if (command == Command::eval && sub->count("--suite") > 0)
            overrides.push_back("eval.suites.run=" + yaml_text(typed.suite));
        if (command == Command::serve && sub->count("--host") > 0)
            overrides.push_back("serve.host=" + yaml_text(typed.host));
        if (command == Command::serve && sub->count("--port") > 0)
            overrides.push_back(fmt::format("serve.port={}", typed.port));
        if (command != Command::generate) return;
        if (typed.chat) overrides.push_back("generate.chat=true");
        if (sub->count("--prompt") > 0) overrides.push_back("generate.prompt=" + yaml_text(typed.prompt));
        if (sub->count("--system") > 0) overrides.push_back("generate.system=" + yaml_text(typed.system));
        if (sub->count("--input") > 0) overrides.push_back("generate.input=" + yaml_text(typed.input));
        if (sub->count("--output") > 0) overrides.push_back("generate.output=" + yaml_text(typed.output));
        if (sub->count("--max-tokens") > 0)
            overrides.push_back(fmt::format("generate.max_tokens={}", typed.max_tokens));
    });
}

/// The first word, where it is meant as a command but is none; CLI11 would only say that a command is missing.
std::optional<CommandLineNotice> unknown_command(int argc, char const* const* argv) {
    if (argc < 2 || argv[1][0] == '-') return std::nullopt;
    std::vector<std::string> names;
    for (CommandRow const& row : kCommands) names.emplace_back(row.name);
    std::string const word = argv[1];
    if (std::find(names.begin(), names.end(), word) != names.end()) return std::nullopt;
    std::string const guess = nearest(word, names);
    std::string const advice = guess.empty() ? fmt::format("known are {}", fmt::join(names, ", "))
                                             : fmt::format("did you mean \"{}\"?", guess);
    return CommandLineNotice{
        fmt::format("unknown command \"{}\"; {}\nRun with --help for more information.\n", word, advice),
        static_cast<int>(Category::config)};
}

/// For keys with dashes, such as --train.steps=5, given to a command that takes keys of the configuration.
std::string advice_on(CLI::ParseError const& stop, CLI::App const& app) {
    auto const commands = app.get_subcommands();
    bool const takes_keys = !commands.empty() && commands.front()->get_option_no_throw("overrides") != nullptr;
    if (!takes_keys || stop.get_exit_code() != static_cast<int>(CLI::ExitCodes::ExtrasError)) return "";
    auto const is_key = [](std::string const& word) { return word.starts_with("--") && word.find('.') != word.npos; };
    if (std::ranges::none_of(commands.front()->remaining(), is_key)) return "";
    return "Keys of the configuration have no dashes, and their values follow after =, as in optimizer.lr=1e-3\n";
}

}  // namespace

CommandApp::CommandApp() : app("Trains transformers with Mixture of Block Attention", "perigee") {
    app.set_version_flag("--version", "perigee " PERIGEE_VERSION);
    app.require_subcommand(1);
    app.formatter(std::make_shared<HelpFormatter>());
    for (CommandRow const& row : kCommands) {
        CLI::App* const sub = app.add_subcommand(row.name, row.help)->group(row.group);
        if (auto const* command = std::get_if<Command>(&row.what)) {
            declare_job(sub, *command, *this);
            continue;
        }
        Action const action = std::get<Action (*)(CLI::App&)>(row.what)(*sub);
        sub->callback([this, action, name = row.name] { local = {name, action}; });
    }
}

Parsed parse_command_line(int argc, char const* const* argv) {
    if (auto notice = unknown_command(argc, argv)) return *notice;
    CommandApp typed;
    try {
        typed.app.parse(argc, argv);
        if (!typed.local.name.empty()) return typed.local;
        return typed.job;
    } catch (CLI::ParseError const& stop) {
        std::ostringstream out, error;
        bool const is_usage_error = typed.app.exit(stop, out, error) != 0;
        int const code = is_usage_error ? static_cast<int>(Category::config) : 0;
        return CommandLineNotice{out.str() + error.str() + advice_on(stop, typed.app), code};
    }
}

}  // namespace perigee
