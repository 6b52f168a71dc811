#include "base/printable.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <system_error>

#include "base/error.h"

namespace perigee {
namespace {

TEST(Printable, ShowsControlCharactersAndKeepsAllOtherText) {
    EXPECT_EQ(printable("\x1b[31mred\x1b[0m\r\x07\x7f"), "\\x1b[31mred\\x1b[0m\\x0d\\x07\\x7f");
    EXPECT_EQ(printable("a\tb\nc"), "a\tb\nc");
    EXPECT_EQ(printable_name("a\tb\nc"), "a\\x09b\\x0ac");
    EXPECT_EQ(printable(std::string("\0x", 2)), "\\x00x");
    EXPECT_EQ(printable("\xC2\x9B"), "\\x9b");  // C1: control sequence introducer
    EXPECT_EQ(printable("\x9B"
                        "31m"),
              "\\x9b31m");                                                             // the same as a lone byte
    std::string const text = "gr\xC3\xB6\xC3\x9F \xE4\xB8\x9B \xF0\x9F\x92\x9B \xFF";  // continuation bytes stay
    EXPECT_EQ(printable(text), text);
    EXPECT_EQ(printable("\xE4\x9B"), "\xE4\\x9b");  // a sequence that is cut off
}

/// What print_generated() writes to a standard output that is a terminal.
std::string on_a_terminal(std::string const& text) {
    int const master = ::posix_openpt(O_RDWR | O_NOCTTY);
    EXPECT_EQ(::grantpt(master) + ::unlockpt(master), 0);
    int const terminal = ::open(::ptsname(master), O_RDWR | O_NOCTTY), before = ::dup(STDOUT_FILENO);
    std::fflush(stdout);
    ::dup2(terminal, STDOUT_FILENO);
    print_generated(text);
    ::dup2(before, STDOUT_FILENO);
    char printed[64];
    ssize_t const bytes = ::read(master, printed, sizeof printed);
    for (int const descriptor : {master, terminal, before}) ::close(descriptor);
    return {printed, static_cast<size_t>(std::max<ssize_t>(bytes, 0))};
}

TEST(PrintGenerated, EscapesOnATerminalUnlessTheLauncherSaysThatItsOutputGoesToAFile) {
    EXPECT_EQ(on_a_terminal("a\x13"), "a\\x13");
    ::setenv("PERIGEE_OUTPUT", "terminal", 1);
    EXPECT_EQ(on_a_terminal("a\x13"), "a\\x13");
    ::setenv("PERIGEE_OUTPUT", "file", 1);
    EXPECT_EQ(on_a_terminal("a\x13"), "a\x13");
    ::unsetenv("PERIGEE_OUTPUT");
}

TEST(AsError, WantOfMemoryIsNoFaultOfTheProgram) {
    EXPECT_EQ(as_error(std::bad_alloc()).category(), Category::memory);
    EXPECT_EQ(as_error(std::bad_alloc()).exit_code(), 8);
    EXPECT_EQ(as_error(std::length_error("vector")).category(), Category::memory);
    EXPECT_EQ(as_error(std::system_error(EAGAIN, std::generic_category())).category(), Category::memory);
    EXPECT_EQ(as_error(OutOfMemory("x")).category(), Category::memory);
    EXPECT_EQ(as_error(Error(Category::data, "x")).category(), Category::data);
    EXPECT_EQ(as_error(std::runtime_error("x")).category(), Category::internal);
    EXPECT_EQ(as_error(std::system_error(EIO, std::generic_category())).category(), Category::internal);
}

}  // namespace
}  // namespace perigee
