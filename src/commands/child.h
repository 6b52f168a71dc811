// Other programs, run to their end.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace perigee {

struct ChildResult {
    int exit_code = 0;   ///< 128 + signal where a signal ended it
    std::string output;  ///< what it wrote to standard output, where that was asked for
};

/// Runs words[0] with its arguments in this process's group. With `keep_output` the result has its standard output,
/// else it goes where this process's goes. A request to stop is passed on, and the child's end waited for; a child
/// whose parent dies is told to stop. Throws Category::internal where no process can be made.
ChildResult run_child(std::vector<std::string> const& words, bool keep_output = false);

/// In a child process, after fork(): becomes words[0] with its arguments, unless `parent` has died by now. Ends the
/// process with 1 where that cannot be run.
[[noreturn]] void become_program(std::vector<std::string> words, pid_t parent);

}  // namespace perigee
