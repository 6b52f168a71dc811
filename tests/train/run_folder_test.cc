#include "train/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>

#include "base/log.h"
#include "checkpoint/folders.h"
#include "support/fault_file_system.h"

namespace perigee {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RunFolderTest : public ::testing::Test {
  protected:
    RunFolderTest() {
        std::string pattern = std::filesystem::temp_directory_path() / "perigee_run_XXXXXX";
        path_ = ::mkdtemp(pattern.data());
    }
    ~RunFolderTest() override { std::filesystem::remove_all(path_); }
    std::string text(char const* name) { return files_->read_text(path_ / name, 1 << 20); }

    std::unique_ptr<FileSystem> files_ = make_file_system();
    Path path_;
};

TEST_F(RunFolderTest, second_job_is_refused_until_the_first_has_gone) {
    auto first = std::make_unique<RunFolder>(*files_, path_);
    try {
        RunFolder second(*files_, path_);
        FAIL() << "two jobs hold one folder";
    } catch (Error const& e) {
        EXPECT_EQ(e.category(), Category::config);
        EXPECT_THAT(e.what(), HasSubstr(fmt::format("process {}", ::getpid())));
    }
    first.reset();
    EXPECT_NO_THROW(RunFolder(*files_, path_));
}

TEST_F(RunFolderTest, rewinding_drops_later_steps_the_last_evaluation_and_a_torn_line) {
    {
        RunFolder folder(*files_, path_);
        for (int step = 1; step <= 5; ++step) folder.append_metrics(fmt::format(R"({{"step":{}}})", step));
        folder.append_metrics(R"({"step":5,"eval_loss":2.5})");
        folder.append_metrics(R"({"st)");
    }
    RunFolder folder(*files_, path_);
    std::string const before = text("metrics.jsonl");
    auto stay = folder.rewind_metrics(5, /*evaluates=*/false);
    EXPECT_THAT(stay, ElementsAre(R"({"step":5})", R"({"eval_loss":2.5,"step":5})"));
    EXPECT_EQ(text("metrics.jsonl") + R"({"st)" + "\n", before) << "a run that does not evaluate here again";
    stay = folder.rewind_metrics(5, true);
    EXPECT_THAT(stay, ElementsAre(R"({"step":5})"));
    EXPECT_EQ(text("metrics.jsonl"), "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"step\":4}\n{\"step\":5}\n");
    folder.rewind_metrics(2, true);
    folder.append_metrics(R"({"step":3,"again":true})");
    EXPECT_EQ(text("metrics.jsonl"), "{\"step\":1}\n{\"step\":2}\n{\"step\":3,\"again\":true}\n");
    folder.rewind_metrics(0, true);
    EXPECT_EQ(text("metrics.jsonl"), "");
}

TEST_F(RunFolderTest, rewinding_keeps_lines_that_wait_for_the_disk) {
    testing::FaultFileSystem disk(*files_);
    bool full = false;
    disk.before = [&](testing::FaultFileSystem::Operation const& operation) {
        if (full && operation.name == "write") throw IoError("write", operation.path, ENOSPC);
    };
    RunFolder folder(disk, path_);
    folder.append_metrics(R"({"step":1})");
    full = true;
    for (int step = 2; step <= 5; ++step) folder.append_metrics(fmt::format(R"({{"step":{}}})", step));
    folder.append_sample(R"({"step":5})");
    EXPECT_EQ(folder.finish_metrics(), 5);
    EXPECT_THAT(folder.rewind_metrics(3, false), ElementsAre(R"({"step":3})"));
    EXPECT_EQ(folder.finish_metrics(), 2);
    EXPECT_EQ(text("metrics.jsonl"), "{\"step\":1}\n");
    full = false;
    folder.append_metrics(R"({"step":4})");
    EXPECT_EQ(folder.finish_metrics(), 0);
    EXPECT_EQ(text("metrics.jsonl"), "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"step\":4}\n");
}

TEST_F(RunFolderTest, rewinding_goes_on_in_the_file_that_is_there) {
    RunFolder folder(*files_, path_);
    for (int step = 1; step <= 3; ++step) folder.append_metrics(fmt::format(R"({{"step":{}}})", step));
    files_->replace_text(path_ / "metrics.jsonl", "{\"step\":1}\n{\"step\":2}\n{\"step\":3,\"edited\":1}\n");
    folder.rewind_metrics(2, false);
    folder.append_metrics(R"({"step":3})");
    EXPECT_EQ(text("metrics.jsonl"), "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
    files_->remove_all(path_ / "metrics.jsonl");
    folder.rewind_metrics(2, false);
    folder.append_metrics(R"({"step":3})");
    EXPECT_EQ(text("metrics.jsonl"), "{\"step\":3}\n");
    EXPECT_EQ(folder.finish_metrics(), 0);
}

TEST_F(RunFolderTest, lines_that_the_disk_refuses_at_the_end_are_counted) {
    testing::FaultFileSystem disk(*files_);
    disk.before = [&](testing::FaultFileSystem::Operation const& operation) {
        if (operation.name == "sync" && operation.path.filename() == "metrics.jsonl")
            throw IoError("sync", operation.path, EDQUOT);
    };
    RunFolder folder(disk, path_);
    folder.append_metrics(R"({"step":1})");
    folder.append_metrics(R"({"step":2})");
    folder.append_sample(R"({"step":2})");
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(folder.finish_metrics(), 2);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("the last 2 lines of "));
}

TEST_F(RunFolderTest, a_host_that_sees_another_folder_is_named) {
    RunFolder const folder(*files_, path_);
    EXPECT_NO_THROW(check_shared(*files_, path_, folder.holder()));
    Path const other = path_ / "other";
    files_->make_directories(other);
    for (bool const locked : {false, true}) {
        if (locked) files_->replace_text(other / ".lock", "process 1 on host elsewhere");
        try {
            check_shared(*files_, other, folder.holder(), std::chrono::seconds(0));
            FAIL() << "two folders are taken for one";
        } catch (Error const& e) {
            EXPECT_EQ(e.category(), Category::config);
            EXPECT_THAT(e.what(), HasSubstr("is not the folder that rank 0 (" + folder.holder() + ") has"));
        }
    }
}

TEST_F(RunFolderTest, rewinding_drops_what_evaluations_of_the_step_and_later_ones_left) {
    {
        RunFolder folder(*files_, path_);
        for (int step : {2, 4, 6}) {
            folder.append_sample(fmt::format(R"({{"step":{},"text":"eval_loss"}})", step));
            folder.append_blocks(fmt::format(R"({{"step":{}}})", step));
        }
    }
    RunFolder folder(*files_, path_);
    folder.rewind_metrics(5, true);
    folder.rewind_metrics(4, false);
    EXPECT_THAT(text("samples.jsonl"), HasSubstr("\"step\":4"));
    EXPECT_EQ(text("blocks.jsonl"), "{\"step\":2}\n{\"step\":4}\n");
    folder.rewind_metrics(4, true);
    EXPECT_EQ(text("samples.jsonl"), "{\"step\":2,\"text\":\"eval_loss\"}\n");
    folder.append_blocks(R"({"step":4,"again":1})");
    EXPECT_EQ(text("blocks.jsonl"), "{\"step\":2}\n{\"step\":4,\"again\":1}\n");
}

TEST_F(RunFolderTest, a_line_that_nobody_could_have_written_is_named_and_no_fault_of_the_program) {
    std::string const whole = "{\"step\":1}\n";
    for (char const* line :
         {R"({"step":"x","eval_loss":2.5})", R"({"step":1.5,"eval_loss":2.5})", R"({"step":null,"eval_loss":2.5})",
          R"({"step":-1,"eval_loss":2.5})", R"({"step":18446744073709551615,"eval_loss":2.5})", R"({"eval_loss":2.5})",
          R"(["eval_loss"])", R"({"step":1,"eval_loss":1e999})", R"({"eval_loss")"}) {
        files_->replace_text(path_ / "metrics.jsonl", fmt::format("{}{}\n{}", whole, line, whole));
        RunFolder folder(*files_, path_);
        for (bool const rewinds : {true, false}) {
            try {
                rewinds ? (void)folder.rewind_metrics(5, true) : (void)best_evaluation(*files_, path_, "");
                ADD_FAILURE() << "accepted: " << line;
            } catch (Error const& e) {
                EXPECT_EQ(e.category(), Category::data);
                EXPECT_THAT(e.what(), HasSubstr("metrics.jsonl:2: a JSON object whose `step` is a whole number"));
                EXPECT_THAT(e.what(), HasSubstr(line));
            }
        }
        EXPECT_EQ(text("metrics.jsonl"), fmt::format("{}{}\n{}", whole, line, whole)) << "lines were lost";
    }
}

TEST_F(RunFolderTest, losses_on_other_held_out_data_are_not_the_best) {
    files_->replace_text(
        path_ / "metrics.jsonl",
        "{\"step\":1,\"eval_loss\":1,\"eval_data\":\"a\"}\n{\"step\":2,\"eval_loss\":3,\"eval_data\":\"b\"}\n"
        "{\"step\":3,\"eval_loss\":2,\"eval_data\":\"a\"}\n{\"step\":4,\"eval_loss\":4}\n");
    for (int step = 2; step <= 4; ++step) files_->make_directories(checkpoint_root(path_) / step_name(step));
    EXPECT_EQ(best_evaluation(*files_, path_, "a")->step, 3) << "step 1 has no checkpoint";
    EXPECT_EQ(best_evaluation(*files_, path_, "b")->step, 2);
    EXPECT_EQ(best_evaluation(*files_, path_, "c")->step, 4) << "an older program's, which does not say";
}

TEST_F(RunFolderTest, log_lines_are_copied_into_the_folder) {
    {
        RunFolder folder(*files_, path_);
        folder.mirror_log();
        log::info("a line for {}", "the file");
    }
    log::info("this one comes too late");
    EXPECT_THAT(text("log.txt"), HasSubstr("a line for the file\n"));
    EXPECT_THAT(text("log.txt"), ::testing::Not(HasSubstr("too late")));
}

TEST_F(RunFolderTest, a_folder_that_cannot_be_made_is_a_config_error) {
    try {
        RunFolder folder(*files_, "/proc/perigee");
        FAIL();
    } catch (Error const& e) {
        EXPECT_EQ(e.category(), Category::config);
        EXPECT_THAT(e.what(), HasSubstr("/proc/perigee"));
    }
}

}  // namespace
}  // namespace perigee
