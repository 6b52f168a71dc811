#include "tools/bench/own_process.h"

#include <gtest/gtest.h>

#include <csignal>
#include <stdexcept>
#include <utility>

namespace perigee {
namespace {

TEST(OwnProcess, ReturnsWhatItsWorkReturns) {
    std::string expected;
    for (int i = 0; i < 100'000; ++i) expected += std::to_string(i) + '\0';
    EXPECT_EQ(in_own_process([&] { return expected; }), expected);
    EXPECT_EQ(in_own_process([] { return std::string(); }), "");
}

TEST(OwnProcess, KeepsItsChangesToItself) {
    int x = 1;
    EXPECT_EQ(in_own_process([&] { return std::to_string(++x) + " " + std::to_string(getppid()); }),
              "2 " + std::to_string(getpid()));
    EXPECT_EQ(x, 1);
}

TEST(OwnProcess, PassesFailuresOn) {
    auto const failure = [](auto work) -> std::pair<Category, std::string> {
        try {
            in_own_process([&]() -> std::string {
                work();
                return "";
            });
        } catch (Error const& error) {
            return {error.category(), error.what()};
        }
        return {};
    };
    std::string const ended = "the other process ended with ";
    EXPECT_EQ(failure([] { fail(Category::data, "no such thing"); }), std::pair(Category::data, ended + "code 3"));
    EXPECT_EQ(failure([] { throw std::runtime_error("nor this"); }), std::pair(Category::internal, ended + "code 1"));
    EXPECT_EQ(failure([] { throw 1; }), std::pair(Category::internal, ended + "code 1"));
    EXPECT_EQ(failure([] { _exit(100); }), std::pair(Category::internal, ended + "code 100"));
    EXPECT_EQ(failure([] { std::raise(SIGKILL); }), std::pair(Category::internal, ended + "signal 9"));
}

}  // namespace
}  // namespace perigee
