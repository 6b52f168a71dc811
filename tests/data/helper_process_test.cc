#include "data/helper_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "megatron_files.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

constexpr char kEcho[] = "import sys\nfor line in sys.stdin:\n    print(line.strip()[::-1], flush=True)\n";

HelperProcess helper(char const* script, int milliseconds = 20000) {
    return HelperProcess(
        {.what = "the helper of a test", .script = script, .patience = std::chrono::milliseconds(milliseconds)});
}

/// Sets a variable of the environment while it lives.
class Variable {
  public:
    explicit Variable(char const* value) { setenv("PERIGEE_PYTHON", value, 1); }
    ~Variable() { unsetenv("PERIGEE_PYTHON"); }
};

TEST(HelperProcess, AnswersEveryLineInOrder) {
    HelperProcess echo = helper(kEcho);
    EXPECT_THAT(echo.ask({"abc", "xy"}), ElementsAre("cba", "yx"));
    // More than pipes hold, both ways.
    std::string line(5000, 'a');
    line.back() = 'b';
    std::string const reversed(line.rbegin(), line.rend());
    std::vector<std::string> const lines(2000, line), turned(2000, reversed);
    EXPECT_EQ(echo.ask(lines), turned);
    EXPECT_THAT(echo.ask({"12"}), ElementsAre("21"));
}

TEST(HelperProcess, AnEmptyLineIsASignOfLife) {
    HelperProcess helper({.what = "the helper",
                          .script =
                              "import time\nfor line in open(0):\n    for _ in range(4):\n        time.sleep(2.5); "
                              "print(flush=True)\n    print('done', flush=True)",
                          .patience = std::chrono::milliseconds(8000)});
    EXPECT_EQ(helper.ask({"work"}), std::vector<std::string>{"done"});
}

TEST(HelperProcess, GivesBytesAsTheyAre) {
    HelperProcess bytes = helper("import sys\nsys.stdout.buffer.write(b'line\\n' + bytes(range(256)) * 4000)\n");
    EXPECT_EQ(bytes.read_line(), "line");
    std::string all(256 * 4000, '\0');
    bytes.read(all);
    for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(static_cast<unsigned char>(all[i]), i % 256);
    EXPECT_THAT(error_of(Category::data, [&] { bytes.read(all); }), HasSubstr("ended with exit code 0"));
}

TEST(HelperProcess, OneThatDiesIsToldWithItsLastWords) {
    HelperProcess failing = helper("import sys\nsys.stdin.readline()\nraise ValueError('why it died')\n");
    EXPECT_THAT(error_of(Category::data, [&] { failing.ask({"x"}); }),
                AllOf(HasSubstr("the helper of a test (python3) ended with exit code 1"),
                      HasSubstr("ValueError: why it died")));
    HelperProcess killed =
        helper("import os, signal, sys\nsys.stdin.readline()\nos.kill(os.getpid(), signal.SIGKILL)\n");
    EXPECT_THAT(error_of(Category::data, [&] { killed.ask({"x"}); }), HasSubstr("signal 9"));
    EXPECT_THAT(error_of(Category::data, [&] { killed.ask({"x"}); }), HasSubstr("has ended"));
}

TEST(HelperProcess, OneThatHangsIsEnded) {
    HelperProcess hanging = helper("import sys, time\nsys.stdin.readline()\ntime.sleep(1000)\n", 300);
    EXPECT_THAT(error_of(Category::data, [&] { hanging.ask({"x"}); }),
                HasSubstr("no sign of life for 0.3 s and was ended"));
}

TEST(HelperProcess, AMissingPythonIsAnErrorOfTheConfiguration) {
    Variable const named("/nowhere/python");
    EXPECT_THAT(error_of(Category::config, [&] { helper(kEcho); }),
                AllOf(HasSubstr("/nowhere/python does not start: No such file"), HasSubstr("PERIGEE_PYTHON")));
}

}  // namespace
}  // namespace perigee
