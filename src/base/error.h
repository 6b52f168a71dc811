// Errors: one exception type with a category that decides the exit code, and the checks that throw it.
// User errors carry a sentence for the user; Category::internal marks a broken promise of our own code.
#pragma once

#include <fmt/format.h>

#include <source_location>
#include <stdexcept>
#include <string>

namespace perigee {

enum class Category {
    internal = 1,
    config = 2,
    data = 3,
    checkpoint = 4,
    numeric = 5,
    hang = 6,
    communication = 7,
    memory = 8,
    corruption = 9,  ///< a device computed or kept something wrong: once, as far as is known
    faulty_device = 10
};

/// Exit code of a command that was told to stop (base/stop_request.h); training has saved what there was to save.
inline constexpr int kExitPreempted = 75;

class Error : public std::runtime_error {
  public:
    Error(Category category, std::string const& message) : std::runtime_error(message), category_(category) {}
    Category category() const noexcept { return category_; }
    int exit_code() const noexcept { return static_cast<int>(category_); }

  private:
    Category category_;
};

/// The host or a device has no memory left for what was asked; says so to the user.
class OutOfMemory : public Error {
  public:
    explicit OutOfMemory(std::string const& message) : Error(Category::memory, message) {}
};

/// Any exception as an Error. What the standard library throws for want of memory or threads becomes Category::memory,
/// what is no Error otherwise Category::internal.
Error as_error(std::exception const& exception);

/// For the end of a tool's main: prints "PROGRAM: message" to standard error and returns the exit code.
int report_failure(char const* program, std::exception const& exception) noexcept;

/// The category as a user reads it: "config", "data", ...
char const* to_string(Category category) noexcept;

template <class... Args>
[[noreturn]] void fail(Category category, fmt::format_string<Args...> format, Args&&... args) {
    throw Error(category, fmt::format(format, std::forward<Args>(args)...));
}

namespace detail {
[[noreturn]] void check_failed(char const* condition, std::string const& message, std::source_location where);
}

}  // namespace perigee

/// A promise between parts of the program: throws Category::internal with place and message when broken.
#define PERIGEE_CHECK(condition, ...)                                                                                 \
    do {                                                                                                              \
        if (!(condition)) [[unlikely]]                                                                                \
            ::perigee::detail::check_failed(#condition, ::fmt::format(__VA_ARGS__), std::source_location::current()); \
    } while (false)
