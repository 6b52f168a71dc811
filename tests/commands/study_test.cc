#include <gtest/gtest.h>

#include "commands/study/results.h"

namespace perigee::study {
namespace {

class StudyTableTest : public ::testing::Test {
  protected:
    Study study_{.output_dir = "study",
                 .keys = {"arm", "a.\"key\""},
                 .runs = {{.name = "one", .settings = {"plain", "[1, 2]"}, .seed = 3, .config = {}, .before = {}},
                          {.name = "two", .settings = {"a|b", "say \"x\""}, .seed = 4, .config = {}, .before = {}}},
                 .metrics = {"loss", "x,y"},
                 .figure = "loss"};
    std::vector<Row> rows_{{&study_.runs[0], {0.5, std::nullopt}}, {&study_.runs[1], {2.0, 1.0}}};
};

TEST_F(StudyTableTest, CsvQuotesAsRfc4180) {
    EXPECT_EQ(to_csv(study_, rows_),
              "arm,\"a.\"\"key\"\"\",seed,loss,\"x,y\"\n"
              "plain,\"[1, 2]\",3,0.5,\n"
              "a|b,\"say \"\"x\"\"\",4,2,1\n");
}

TEST_F(StudyTableTest, MarkdownEscapesBars) {
    EXPECT_EQ(to_markdown(study_, rows_),
              "| arm | \"key\" | seeds | loss | x,y |\n"
              "|---|---|---|---|---|\n"
              "| plain | [1, 2] | 1 | 0.500 |  |\n"
              "| a\\|b | say \"x\" | 1 | 2.000 | 1.000 |\n");
}

}  // namespace
}  // namespace perigee::study
