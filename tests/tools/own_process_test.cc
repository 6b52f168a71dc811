#include "tools/bench/own_process.h"

#include <gtest/gtest.h>

#include <stdexcept>

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
    EXPECT_THROW(in_own_process([]() -> std::string { fail(Category::data, "no such thing"); }), Error);
    EXPECT_THROW(in_own_process([]() -> std::string { throw std::runtime_error("nor this"); }), Error);
    EXPECT_THROW(in_own_process([]() -> std::string { _exit(3); }), Error);
}

}  // namespace
}  // namespace perigee
