#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "commands/study/results.h"
#include "support/memory_file_system.h"

namespace perigee::study {
namespace {

using ::testing::ElementsAre, ::testing::IsEmpty, ::testing::StartsWith;

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
              "| plain | [1, 2] | 1 | 0.500 | - |\n"
              "| a\\|b | say \"x\" | 1 | 2.000 | 1.000 |\n");
}

TEST_F(StudyTableTest, AMeanSaysOfHowManySeedsItIs) {
    for (int const seed : {5, 6, 7})
        study_.runs.push_back({.name = "more", .settings = {"b", "1"}, .seed = seed, .config = {}, .before = {}});
    rows_ = {{&study_.runs[2], {1.0, 1.0}},
             {&study_.runs[3], {std::nullopt, std::nullopt}},
             {&study_.runs[4], {2.0, std::nullopt}}};
    EXPECT_EQ(to_markdown(study_, rows_),
              "| arm | \"key\" | seeds | loss | x,y |\n"
              "|---|---|---|---|---|\n"
              "| b | 1 | 3 | 1.500 (1.000 to 2.000), 2 of 3 | 1.000, 1 of 3 |\n");
}

TEST_F(StudyTableTest, SmallAndLargeNumbersAreShown) {
    rows_ = {{&study_.runs[0], {3.07e-5, 275513344.0}}};
    EXPECT_THAT(to_markdown(study_, rows_), ::testing::EndsWith("| 3.07e-05 | 275513344 |\n"));
    rows_ = {{&study_.runs[0], {-0.0125, 0.0}}};
    EXPECT_THAT(to_markdown(study_, rows_), ::testing::EndsWith("| -0.0125 | 0.000 |\n"));
}

TEST_F(StudyTableTest, LossesOfOtherHeldOutSamplesAreNamed) {
    testing::MemoryFileSystem files;
    auto const evaluated = [&](study::Run const& run, std::string const& data) {
        files.make_directories(study_.folder(run));
        files.replace_text(study_.folder(run) / "metrics.jsonl",
                           fmt::format("{{\"step\":1,\"x,y\":1,\"loss\":2}}\n"
                                       "{{\"step\":1,\"eval_loss\":3,\"eval_data\":\"{}\"}}\n",
                                       data));
    };
    evaluated(study_.runs[0], "a"), evaluated(study_.runs[1], "b");
    study_.metrics.push_back("eval_loss");
    EXPECT_THAT(cautions(study_, rows_, files), IsEmpty()) << "seeds may differ";
    study_.runs[1].seed = study_.runs[0].seed;
    EXPECT_THAT(cautions(study_, rows_, files), ElementsAre(StartsWith("one and two were evaluated on different")));
    evaluated(study_.runs[1], "a");
    EXPECT_THAT(cautions(study_, rows_, files), IsEmpty());
    evaluated(study_.runs[1], "b");
    study_.metrics = {"loss"};
    EXPECT_THAT(cautions(study_, rows_, files), IsEmpty()) << "no held-out loss is compared";
}

TEST(StudyLabel, IsTheShortestEndOfAKeyThatNamesItAlone) {
    Study study;
    study.keys = {"arm",
                  "optimizer.lr",
                  "attention.full_layers.last",
                  "precision.bf16_layers.last",
                  "threads",
                  "data.threads",
                  "data.mock.seed",
                  "a.b.c",
                  "b.c"};
    std::vector<std::string> labels;
    for (std::string const& key : study.keys) labels.push_back(study.label(key));
    EXPECT_EQ(labels, (std::vector<std::string>{"arm", "lr", "full_layers.last", "bf16_layers.last", "threads",
                                                "data.threads", "mock.seed", "a.b.c", "b.c"}));
}

}  // namespace
}  // namespace perigee::study
