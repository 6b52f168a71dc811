#include "base/standard_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace perigee {

void open_standard_files() {
    // A new file takes the lowest free number. What is written to a closed standard output fails, as it should.
    for (int const file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
        if (::fcntl(file, F_GETFD) < 0)
            static_cast<void>(::open("/dev/null", file == STDERR_FILENO ? O_WRONLY : O_RDONLY));
}

int code_with_output_written(int code) {
    errno = 0;
    bool const written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
    if (written || code != 0) return code;
    char const* const why = errno != 0 ? std::strerror(errno) : "an earlier write has failed";
    std::fputs(fmt::format("perigee: data error: standard output has not taken the result: {}\n", why).c_str(), stderr);
    return static_cast<int>(Category::data);
}

void outlive_readers() { std::signal(SIGPIPE, SIG_IGN); }

}  // namespace perigee
