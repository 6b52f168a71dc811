// Work in a process of its own, which begins as a copy of this one.
#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"

namespace perigee {

/// What `work` returns there. To be called before this process first uses a GPU or OpenMP, which do not survive the
/// copy. Throws where the other process fails, which has said why by then: the category of its Error, else internal.
inline std::string in_own_process(std::function<std::string()> const& work) {
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> const result(std::tmpfile(), std::fclose);
    PERIGEE_CHECK(result != nullptr, "no temporary file");
    std::fflush(nullptr);
    pid_t const child = fork();
    PERIGEE_CHECK(child >= 0, "no other process");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody waits for it then
        int code = 0;
        try {
            std::string const text = work();
            if (std::fwrite(text.data(), 1, text.size(), result.get()) != text.size()) code = 1;
        } catch (Error const& error) {
            fmt::print(stderr, "{}\n", error.what());
            code = error.exit_code();
        } catch (std::exception const& error) {
            fmt::print(stderr, "{}\n", error.what());
            code = 1;
        } catch (...) {
            code = 1;
        }
        if (std::fflush(nullptr) != 0) code = 1;
        _exit(code);
    }
    int status = 0;
    PERIGEE_CHECK(waitpid(child, &status, 0) == child, "lost process {}", child);
    if (WIFSIGNALED(status)) fail(Category::internal, "the other process ended with signal {}", WTERMSIG(status));
    if (int const code = WEXITSTATUS(status); code != 0)
        fail(code <= static_cast<int>(Category::communication) ? Category{code} : Category::internal,
             "the other process ended with code {}", code);
    std::rewind(result.get());
    std::string text;
    std::array<char, 4096> part;
    while (size_t const read = std::fread(part.data(), 1, part.size(), result.get())) text.append(part.data(), read);
    PERIGEE_CHECK(std::ferror(result.get()) == 0, "what the other process wrote cannot be read");
    return text;
}

}  // namespace perigee
