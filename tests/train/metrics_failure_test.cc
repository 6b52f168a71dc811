// A disk that takes no metrics for some steps: no line is lost, none is torn, and the best checkpoint is the right one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "checkpoint/folders.h"
#include "config/config.h"
#include "support/fault_file_system.h"
#include "support/temporary_folder.h"
#include "support/thread_comm.h"
#include "train/trainer.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using testing::FaultFileSystem;
using ::testing::HasSubstr;
using ::testing::Not;

/// Writes of this file number first..last fail, counted from 1, and leave half of their bytes behind.
class Failing : public FaultFileSystem {
  public:
    Failing(FileSystem& disk, std::string const& name, int first, int last) : FaultFileSystem(disk), disk_(disk) {
        before = [this, name, first, last](Operation const& operation) {
            if (operation.name != "write" || operation.path.filename() != name) return;
            if (++writes < first || writes > last) return;
            disk_.append(operation.path)
                ->write_at(disk_.file_size(operation.path), std::as_bytes(std::span("torn", 4)));
            throw IoError("write", operation.path, ENOSPC);
        };
    }
    int writes = 0;

  private:
    FileSystem& disk_;
};

class MetricsFailure : public ::testing::Test {
  protected:
    static RunOptions options(Path const& output) {
        RunOptions o = parse_config(R"(
model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1}
attention: {kind: moba, block_size: 16, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 64}
train: {steps: 12, global_batch_size: 4, micro_batch_size: 1}
optimizer: {lr: 3e-3}
schedule: {decay: constant}
checkpoint: {every: 2, keep_last: 1, keep_best: true}
eval: {every: 2, samples: 4}
threads: 1
log: {progress: false}
)",
                                    "tiny", {});
        o.output_dir = output.string();
        return resolve(o, 2, *make_file_system());
    }
    /// Trains on two ranks; the error with which all of them ended.
    static std::optional<Error> train(RunOptions const& o, FileSystem& files) {
        std::vector<std::optional<Error>> errors(2);
        testing::run_ranks(2, [&](HostComm& world) {
            try {
                Trainer(o, world, files, "").run();
            } catch (Error const& e) {
                errors[static_cast<size_t>(world.rank())] = e;
            }
        });
        EXPECT_EQ(errors[0].has_value(), errors[1].has_value());
        return errors[0];
    }
    std::vector<nlohmann::json> lines() {
        std::vector<nlohmann::json> all;
        std::istringstream text(disk_->read_text(output_ / "metrics.jsonl", 1 << 20));
        for (std::string line; std::getline(text, line);) all.push_back(nlohmann::json::parse(line));
        return all;
    }
    std::vector<int64_t> steps_kept() {
        std::vector<int64_t> steps;
        for (auto const& folder : step_folders(*disk_, checkpoint_root(output_))) steps.push_back(folder.step);
        return steps;
    }

    testing::TemporaryFolder folder_;
    std::unique_ptr<FileSystem> disk_ = make_file_system();
    Path const output_ = folder_.path() / "run";
};

TEST_F(MetricsFailure, LosesNoLineAndIsToldTwice) {
    Failing disk(*disk_, "metrics.jsonl", 4, 12);
    ::testing::internal::CaptureStderr();
    EXPECT_FALSE(train(options(output_), disk).has_value());
    std::string const said = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, AllOf(HasSubstr("metrics.jsonl wait in memory until it can be written: cannot write"),
                            HasSubstr("metrics.jsonl can be written again: 9 lines that waited")));
    EXPECT_EQ(said.find("wait in memory"), said.rfind("wait in memory"));
    auto const all = lines();
    ASSERT_EQ(all.size(), 18u) << "12 steps and 6 evaluations";
    int64_t step = 0;
    for (auto const& line : all) {
        if (!line.contains("loss")) continue;
        EXPECT_EQ(line["step"], ++step);
    }
    EXPECT_EQ(step, 12);
}

TEST_F(MetricsFailure, DoesNotDecideWhichCheckpointIsTheBest) {
    RunOptions o = options(output_);
    o.train.steps = 6;
    ASSERT_FALSE(train(o, *disk_).has_value());
    o.train.steps = 12;
    o.optimizer.lr = 1;  // all that follows is worse
    Failing disk(*disk_, "metrics.jsonl", 1, 1000);
    EXPECT_TRUE(train(o, disk).has_value());
    ASSERT_THAT(steps_kept(), ::testing::ElementsAre(12, 6)) << "by the evaluation of step 6 that no metrics have";
    EXPECT_EQ(best_checkpoint(*disk_, output_)->step, 6);
    disk_->remove_all(output_ / "metrics.jsonl");
    o.train.steps = 14;
    EXPECT_FALSE(train(o, *disk_).has_value());
    EXPECT_THAT(steps_kept(), ::testing::ElementsAre(14, 6)) << "without any metrics";
    EXPECT_EQ(best_checkpoint(*disk_, output_)->step, 6);
}

TEST_F(MetricsFailure, ThatNeverEndsEndsTheRunWithACode) {
    Failing disk(*disk_, "metrics.jsonl", 5, 1000);
    auto const error = train(options(output_), disk);
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->category(), Category::data);
    EXPECT_THAT(error->what(), AllOf(HasSubstr("saved at step 12"), HasSubstr("14 lines of")));
    EXPECT_EQ(lines().size(), 4u) << "whole lines alone";
    EXPECT_THAT(steps_kept(), Contains(12));
}

TEST_F(MetricsFailure, OfTheLogDoesNotHangTheRun) {
    Failing disk(*disk_, "log.txt", 2, 5);
    EXPECT_FALSE(train(options(output_), disk).has_value());
    std::string const log = disk_->read_text(output_ / "log.txt", 1 << 20);
    EXPECT_THAT(log, AllOf(::testing::ContainsRegex("\n[^\n]*  +1 +[0-9.]+ "), HasSubstr("finished at step 12"),
                           Not(HasSubstr("torn"))));
}

TEST_F(MetricsFailure, TakesABoundedAmountOfMemory) {
    disk_->make_directories(output_);
    Failing disk(*disk_, "metrics.jsonl", 1, 70);
    LineFile file(disk, output_ / "metrics.jsonl");
    std::string const line(size_t{1} << 20, 'x');
    for (int i = 0; i < 70; ++i) file.append(line);
    EXPECT_EQ(file.missing(), 70);
    EXPECT_FALSE(file.flush()) << "some were lost";
    EXPECT_EQ(file.missing(), 7) << "63 lines of a MiB and their ends fit in 64 MiB";
    EXPECT_THAT(file.news(), HasSubstr("63 lines that waited are in it, 7 were lost"));
}

}  // namespace
}  // namespace perigee
