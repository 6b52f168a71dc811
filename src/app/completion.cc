#include "app/completion.h"

#include <fmt/ranges.h>

#include <map>
#include <memory>

#include "app/command_app.h"
#include "config/config.h"

namespace perigee {
namespace {

using Words = std::vector<std::string>;

/// What may follow a command.
struct Completion {
    std::string name, help;
    Words subcommands;  ///< or the values of its first argument
    Words options;
    std::map<std::string, Words> choices;  ///< of options that take one of a few values
    bool keys = false;                     ///< key=value of a configuration
};

/// The values of "TEXT:{a,b}" and "ENUM:(a, b)"; none for other types.
Words choices_of(std::string const& type) {
    size_t const begin = type.find_first_of("{(");
    Words found;
    if (begin == std::string::npos || type.find_last_of("})") != type.size() - 1) return found;
    std::string word;
    for (char const c : type.substr(begin + 1)) {
        if (c == ',' || c == '}' || c == ')') {
            found.push_back(word);
            word.clear();
        } else if (c != ' ') {
            word += c;
        }
    }
    return found;
}

Completion describe(CLI::App const& command) {
    Completion result;
    result.name = command.get_name();
    result.help = command.get_description();
    for (CLI::App const* sub : command.get_subcommands({})) result.subcommands.push_back(sub->get_name());
    for (CLI::Option const* option : command.get_options()) {
        if (option->get_type_name() == "key=value") result.keys = true;
        Words const choices = choices_of(option->get_type_name());
        if (option->get_positional() && !choices.empty()) result.subcommands = choices;
        for (std::string const& name : option->get_lnames()) {
            result.options.push_back("--" + name);
            if (!choices.empty()) result.choices["--" + name] = choices;
        }
    }
    return result;
}

std::vector<Completion> completions() {
    CommandApp const commands;
    std::vector<Completion> result;
    for (CLI::App const* command : commands.app.get_subcommands({})) result.push_back(describe(*command));
    return result;
}

std::string joined(Words const& words) { return fmt::format("{}", fmt::join(words, " ")); }

/// Branches of `case` over keys that take one of a few values.
std::string values_by_key(std::string const& indent) {
    std::string result;
    for (ConfigKey const& key : config_keys())
        if (!key.values.empty()) result += fmt::format("{}{}) values='{}' ;;\n", indent, key.name, joined(key.values));
    return result;
}

std::string all_keys() {
    std::string result;
    for (ConfigKey const& key : config_keys()) result += (result.empty() ? "" : " ") + key.name;
    return result;
}

/// Branches of `case` over commands: the words that bash and zsh need alike.
std::string words_by_command(std::string const& indent) {
    std::string result;
    for (Completion const& command : completions()) {
        result += fmt::format("{}{}) options='{}'", indent, command.name, joined(command.options));
        if (!command.subcommands.empty()) result += fmt::format(" subcommands='{}'", joined(command.subcommands));
        if (command.keys) result += " keys=1";
        result += " ;;\n";
    }
    return result;
}

/// Branches of `case` over "command option".
std::string values_by_option(std::string const& indent) {
    std::string result;
    for (Completion const& command : completions())
        for (auto const& [option, values] : command.choices)
            result += fmt::format("{}'{} {}') values='{}' ;;\n", indent, command.name, option, joined(values));
    return result;
}

/// Words are taken from the line itself, as '=' splits them for bash.
std::string bash_script() {
    Words names;
    for (Completion const& command : completions()) names.push_back(command.name);
    return fmt::format(
        R"(# Completion of perigee for bash, made by `perigee completion bash`.
_perigee() {{
    local line=${{COMP_LINE:0:COMP_POINT}} options='' subcommands='' values='' keys=''
    local word=${{line##*[[:space:]]}} before=(${{line%"${{line##*[[:space:]]}}"}})
    COMPREPLY=()
    if [ "${{#before[@]}}" -le 1 ]; then
        COMPREPLY=($(compgen -W '{names} --help --version' -- "$word"))
        return
    fi
    case ${{before[1]}} in
{words}    esac
    case "${{before[1]}} ${{before[${{#before[@]}} - 1]}}" in
{option_values}    esac
    if [ -n "$values" ]; then
        COMPREPLY=($(compgen -W "$values" -- "$word"))
        return
    fi
    if [ -n "$subcommands" ] && [ "${{#before[@]}}" = 2 ]; then
        COMPREPLY=($(compgen -W "$subcommands --help" -- "$word"))
        return
    fi
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$word"))
    elif [ -n "$keys" ] && [[ $word == *=* ]]; then
        case ${{word%%=*}} in
{key_values}        esac
        if [ -n "$values" ]; then
            COMPREPLY=($(compgen -W "$values" -- "${{word#*=}}"))
        else
            COMPREPLY=($(compgen -f -- "${{word#*=}}"))
        fi
    else
        COMPREPLY=($(compgen -f -- "$word"))
        if [ -n "$keys" ] && [ -n "$word" ]; then
            local key
            for key in $(compgen -W '{keys}' -- "$word"); do COMPREPLY+=("$key="); done
            [[ ${{#COMPREPLY[@]}} = 0 || ${{COMPREPLY[0]}} != *= ]] || compopt -o nospace 2>/dev/null
        fi
    fi
}}
complete -o filenames -F _perigee perigee
)",
        fmt::arg("names", joined(names)), fmt::arg("words", words_by_command("        ")),
        fmt::arg("option_values", values_by_option("        ")), fmt::arg("key_values", values_by_key("            ")),
        fmt::arg("keys", all_keys()));
}

std::string zsh_script() {
    std::string names;
    for (Completion const& command : completions())
        names += fmt::format("            \"{}:{}\"\n", command.name, command.help);
    return fmt::format(
        R"(#compdef perigee
# Completion of perigee for zsh, made by `perigee completion zsh`.
_perigee() {{
    local options='' subcommands='' values='' keys=''
    local -a commands
    if (( CURRENT == 2 )); then
        commands=(
{names}        )
        _describe -t commands command commands
        return
    fi
    case $words[2] in
{words}    esac
    case "$words[2] $words[CURRENT-1]" in
{option_values}    esac
    if [[ -n $values ]]; then
        compadd -- ${{=values}}
    elif [[ -n $subcommands ]] && (( CURRENT == 3 )); then
        compadd -- ${{=subcommands}}
    elif [[ $PREFIX == -* ]]; then
        compadd -- ${{=options}}
    elif [[ -n $keys && $PREFIX == *=* ]]; then
        case ${{PREFIX%%=*}} in
{key_values}        esac
        compset -P '*='
        if [[ -n $values ]]; then
            compadd -- ${{=values}}
        else
            _files
        fi
    else
        _files
        keys=${{keys:+'{keys}'}}
        [[ -z $keys ]] || compadd -S '=' -- ${{=keys}}
    fi
}}
compdef _perigee perigee
)",
        fmt::arg("names", names), fmt::arg("words", words_by_command("        ")),
        fmt::arg("option_values", values_by_option("        ")), fmt::arg("key_values", values_by_key("            ")),
        fmt::arg("keys", all_keys()));
}

}  // namespace

std::string completion_script(Shell shell) { return shell == Shell::bash ? bash_script() : zsh_script(); }

Action declare_completion(CLI::App& app) {
    auto const shell = std::make_shared<Shell>();
    std::map<std::string, Shell> const shells{{"bash", Shell::bash}, {"zsh", Shell::zsh}};
    app.add_option("SHELL", *shell, "bash: source <(perigee completion bash); zsh: the same")
        ->required()
        ->transform(CLI::CheckedTransformer(shells).description(""))
        ->transform(CLI::IsMember({"bash", "zsh"}).description("(bash, zsh)"));  // first: the other takes numbers too
    return [shell](FileSystem&) {
        fmt::print("{}", completion_script(*shell));
        return 0;
    };
}

}  // namespace perigee
