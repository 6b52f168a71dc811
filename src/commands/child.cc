#include "commands/child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/held_signals.h"

namespace perigee {
namespace {

/// In the child, which never comes back.
[[noreturn]] void become(std::vector<std::string> words, int output, pid_t parent, HeldSignals const& held) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    held.release();
    if (output >= 0 && dup2(output, STDOUT_FILENO) < 0) _exit(1);
    become_program(std::move(words), parent);
}

std::string read_all(int descriptor) {
    std::string text;
    std::array<char, 4096> part{};
    for (;;) {
        ssize_t const count = ::read(descriptor, part.data(), part.size());
        if (count > 0) text.append(part.data(), static_cast<size_t>(count));
        if (count == 0 || (count < 0 && errno != EINTR)) return text;
    }
}

}  // namespace

void become_program(std::vector<std::string> words, pid_t parent) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    if (getppid() == parent) execv(arguments[0], arguments.data());
    fmt::print(stderr, "perigee: cannot run {}: {}\n", words[0], std::strerror(errno));
    std::fflush(stderr);
    _exit(1);
}

ChildResult run_child(std::vector<std::string> const& words, bool keep_output) {
    HeldSignals const held;
    std::array<int, 2> ends{-1, -1};
    if (keep_output && pipe2(ends.data(), O_CLOEXEC) != 0)
        fail(Category::internal, "cannot make a pipe: {}", std::strerror(errno));
    pid_t const parent = getpid(), pid = fork();
    if (pid == 0) become(words, ends[1], parent, held);
    if (keep_output) ::close(ends[1]);
    if (pid < 0) fail(Category::internal, "cannot start a process: {}", std::strerror(errno));
    ChildResult result;
    std::jthread reader;
    if (keep_output) reader = std::jthread([&result, end = ends[0]] { result.output = read_all(end); });
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) != pid)
        if (held.wait() != SIGCHLD) kill(pid, SIGTERM);
    if (keep_output) {
        reader.join();
        ::close(ends[0]);
    }
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result;
}

}  // namespace perigee
