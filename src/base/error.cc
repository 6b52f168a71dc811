#include "base/error.h"

#include <cerrno>
#include <cstdio>
#include <new>
#include <system_error>

#include "base/printable.h"

namespace perigee {

char const* to_string(Category category) noexcept {
    switch (category) {
        case Category::internal:
            return "internal";
        case Category::config:
            return "config";
        case Category::data:
            return "data";
        case Category::checkpoint:
            return "checkpoint";
        case Category::numeric:
            return "numeric";
        case Category::hang:
            return "hang";
        case Category::communication:
            return "communication";
        case Category::memory:
            return "memory";
        case Category::corruption:
            return "corruption";
        case Category::faulty_device:
            return "faulty device";
    }
    return "unknown";
}

Error as_error(std::exception const& exception) {
    if (auto const* error = dynamic_cast<Error const*>(&exception)) return *error;
    auto const* system = dynamic_cast<std::system_error const*>(&exception);
    bool const starved = dynamic_cast<std::bad_alloc const*>(&exception) != nullptr ||
                         dynamic_cast<std::length_error const*>(&exception) != nullptr ||
                         (system != nullptr && (system->code().value() == ENOMEM || system->code().value() == EAGAIN));
    bool const printing = system != nullptr && std::ferror(stdout) != 0;  // what fmt::print throws
    if (printing && !starved)
        return Error(Category::data, fmt::format("standard output has not taken the result: {}", exception.what()));
    if (!starved) return Error(Category::internal, exception.what());
    return OutOfMemory(fmt::format(
        "the host has no memory left for this process, or a limit on it (ulimit -v, a control group) is reached ({})",
        exception.what()));
}

int report_failure(char const* program, std::exception const& exception) noexcept {
    try {
        Error const error = as_error(exception);
        std::fputs(fmt::format("{}: {}\n", program, printable(error.what())).c_str(), stderr);
        return error.exit_code();
    } catch (std::exception const&) {  // not even memory for the message
        std::fputs("out of memory\n", stderr);
        return static_cast<int>(Category::memory);
    }
}

namespace detail {
void check_failed(char const* condition, std::string const& message, std::source_location where) {
    throw Error(Category::internal,
                fmt::format("{}:{}: {} (expected: {})", where.file_name(), where.line(), message, condition));
}
}  // namespace detail

}  // namespace perigee
