// A Python script of ours in a process of its own, for what only Python libraries do as the field expects it.
// Supervised: one that is missing, dies or hangs is an error in words. For data preparation and generation, never for a
// training step.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace perigee {

struct HelperProgram {
    std::string what;                           ///< for messages: "the helper that renders chat templates"
    char const* script;                         ///< see data/helpers/scripts.h
    std::vector<std::string> arguments = {};    ///< of the script
    std::chrono::milliseconds patience{60000};  ///< without a sign of life
};

/// One thread at a time. The process runs in a group of its own, so that a terminal's Ctrl-C reaches only the one that
/// waits for it, and ends when this does.
class HelperProcess {
  public:
    /// Starts Python: the program that the environment variable PERIGEE_PYTHON names, else `python3`. Throws
    /// Category::config where there is none.
    explicit HelperProcess(HelperProgram program);
    ~HelperProcess();
    HelperProcess(HelperProcess const&) = delete;
    HelperProcess& operator=(HelperProcess const&) = delete;

    /// Sends lines (without line ends) and returns as many lines of answers. An empty line is no answer, but a sign of
    /// life. Throws Category::data where the process died, with what it said last, or was silent for the patience,
    /// after which it is ended.
    std::vector<std::string> ask(std::vector<std::string> const& lines);
    /// The next line that it writes, without its end, also an empty one. Throws like ask().
    std::string read_line();
    /// Exactly so many bytes of what it writes. Throws like ask().
    void read(std::span<char> bytes);

    /// An earlier call found that it died, or ended it.
    bool ended() const { return !process_; }
    /// Which Python runs, for messages.
    std::string const& python() const { return python_; }
    std::string const& what() const { return program_.what; }

  private:
    class Process;

    void exchange(std::string_view& unsent);
    [[noreturn]] void fail_ended();

    HelperProgram program_;
    std::string python_;
    std::unique_ptr<Process> process_;
    std::string received_;
    size_t used_ = 0;  ///< of what was received
};

/// What a user is told where a library of Python is missing.
std::string missing_module(HelperProcess const& helper, std::string const& module, std::string const& remedy);

}  // namespace perigee
