// checkpoint.keep_best: the checkpoint with the lowest validation loss outlives the newer ones, across resumes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/folders.h"
#include "config/config.h"
#include "support/temporary_folder.h"
#include "support/thread_comm.h"
#include "train/described.h"
#include "train/trainer.h"

namespace perigee {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

RunOptions options_for(Path const& output, int64_t steps, double lr) {
    RunOptions o = parse_config(R"(
model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1}
attention: {kind: moba, block_size: 16, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 64}
train: {global_batch_size: 4, micro_batch_size: 2}
schedule: {decay: constant}
checkpoint: {every: 2, keep_last: 1, keep_best: true}
eval: {every: 2, samples: 4}
threads: 1
log: {progress: false}
)",
                                "best", {});
    o.output_dir = output.string();
    o.train.steps = steps;
    o.optimizer.lr = lr;
    return o;
}

class BestCheckpointTest : public ::testing::Test {
  protected:
    void train(RunOptions const& options, int ranks = 1) {
        testing::run_ranks(ranks,
                           [&](HostComm& world) { Trainer(resolve(options, 1, *files_), world, *files_, "").run(); });
    }
    void train(int64_t steps, double lr, int ranks = 1) { train(options_for(output_, steps, lr), ranks); }
    std::vector<int64_t> steps_kept() { return steps_kept(output_); }
    std::vector<int64_t> steps_kept(Path const& output) {
        std::vector<int64_t> steps;
        for (auto const& folder : step_folders(*files_, checkpoint_root(output))) steps.push_back(folder.step);
        return steps;
    }
    std::map<int64_t, double> evaluations() const { return evaluations(output_); }
    /// By which the last evaluation's loss is told from others.
    static std::string held_out(Path const& output) {
        std::string found;
        std::ifstream file(output / "metrics.jsonl");
        for (std::string line; std::getline(file, line);) {
            auto const object = nlohmann::json::parse(line, nullptr, false);
            if (object.contains("eval_data")) found = object["eval_data"];
        }
        return found;
    }
    static std::map<int64_t, double> evaluations(Path const& output) {
        std::map<int64_t, double> found;
        std::ifstream file(output / "metrics.jsonl");
        for (std::string line; std::getline(file, line);) {
            auto const object = nlohmann::json::parse(line);
            if (object.contains("eval_loss")) found[object["step"]] = object["eval_loss"];
        }
        return found;
    }

    std::unique_ptr<FileSystem> files_ = make_file_system();
    testing::TemporaryFolder folder_;
    Path const output_ = folder_.path() / "run";
    std::unique_ptr<HostComm> alone_ = make_single_host_comm();
};

TEST_F(BestCheckpointTest, outlives_worse_ones_across_resumes) {
    train(6, 3e-3);
    EXPECT_THAT(steps_kept(), ElementsAre(6, 4)) << "when step 6 was saved, 4 was the best";
    train(12, 1.0, 2);  // far too high: all that follows is worse
    auto const losses = evaluations();
    ASSERT_EQ(losses.size(), 6u);
    for (int64_t const step : {2, 4, 8, 10, 12}) ASSERT_GT(losses.at(step), losses.at(6)) << step;
    EXPECT_THAT(steps_kept(), ElementsAre(12, 6));
    train(14, 1.0);  // knows of it from the metrics alone
    EXPECT_THAT(steps_kept(), ElementsAre(14, 6));

    RunOptions options = options_for(output_, 14, 1.0);
    options.checkpoint.resume = "best";
    auto const best = find_checkpoint(options.checkpoint, options.output_dir, *alone_, *files_);
    ASSERT_TRUE(best.has_value());
    EXPECT_EQ(best->state().step, 6);
}

TEST_F(BestCheckpointTest, may_be_that_of_the_last_step_of_a_run_that_is_extended) {
    train(5, 3e-3);  // evaluates at the end, too
    train(12, 1.0);
    auto const losses = evaluations();
    ASSERT_TRUE(losses.contains(5)) << "nobody evaluates there again";
    for (int64_t const step : {2, 4, 6, 8, 10, 12}) ASSERT_GT(losses.at(step), losses.at(5)) << step;
    EXPECT_THAT(steps_kept(), ElementsAre(12, 5));
}

TEST_F(BestCheckpointTest, is_none_of_the_run_that_another_one_began_from) {
    train(6, 3e-3);
    Path const next = folder_.path() / "next";
    RunOptions options = options_for(next, 8, 0.3);  // far too high
    options.checkpoint.resume = (checkpoint_root(output_) / step_name(6)).string();
    train(options);
    train(options_for(next, 12, 3.0));  // and higher still: step 8 stays the best of this run
    auto const losses = evaluations(next);
    ASSERT_LT(losses.at(6), losses.at(8));
    for (int64_t const step : {10, 12}) ASSERT_GT(losses.at(step), losses.at(8)) << step;
    EXPECT_THAT(steps_kept(next), ElementsAre(12, 8));
}

TEST_F(BestCheckpointTest, is_found_anew_on_other_held_out_data) {
    train(5, 3e-3);  // step 6 is the next one that is evaluated
    std::string const before = held_out(output_), told = "has changed since step 4 was the best";
    RunOptions options = options_for(output_, 6, 0.3);  // far too high
    options.eval.samples = 8;
    ::testing::internal::CaptureStderr();
    train(options, 2);
    std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, HasSubstr(told));
    EXPECT_EQ(said.find(told), said.rfind(told)) << "by rank 0 alone";
    EXPECT_NE(held_out(output_), before);

    options.train.steps = 12;
    options.optimizer.lr = 3.0;  // and higher still: step 6 stays the best, though the metrics have that of step 5
    ::testing::internal::CaptureStderr();
    train(options);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("held-out data has changed")));
    auto const losses = evaluations();
    ASSERT_LT(losses.at(5), losses.at(6));
    for (int64_t const step : {8, 10, 12}) ASSERT_GT(losses.at(step), losses.at(6)) << step;
    EXPECT_THAT(steps_kept(), ElementsAre(12, 6));
    EXPECT_EQ(best_checkpoint(*files_, output_)->step, 6);

    options.eval.samples = 2;
    train(options);  // no step is left: step 12 alone is evaluated on these
    EXPECT_EQ(best_checkpoint(*files_, output_)->step, 12);
}

TEST_F(BestCheckpointTest, of_the_same_held_out_data_elsewhere_is_known) {
    RunOptions options = resolve(options_for(output_, 4, 1e-3), 1, *files_);
    std::map<std::string, std::string> contents = {{"train.0", "1 bytes, a"}, {"validation.0", "2 bytes, b"}};
    options.data.mock_data = false;
    options.data.train = {{.path = "a"}}, options.data.validation = {{.path = "b"}};
    std::string const first = held_out_data(options, contents);
    auto moved = options;
    moved.data.validation[0].path = "elsewhere/b", moved.data.train[0].path = "c", moved.seed = 5;
    contents["train.0"] = "3 bytes, c";
    EXPECT_EQ(held_out_data(moved, contents), first) << "other training data";
    for (auto const& change : std::vector<std::function<void(RunOptions&)>>{
             [](RunOptions& o) { o.eval.samples = 5; }, [](RunOptions& o) { o.data.sequence_length = 32; },
             [](RunOptions& o) { o.data.document_mask = false; },
             [](RunOptions& o) { o.data.packing = Packing::best_fit; },
             [](RunOptions& o) { o.data.validation.clear(), o.data.validation_fraction = 0.1; },
             [](RunOptions& o) { o.data.mock_data = true; }}) {
        auto other = options;
        change(other);
        EXPECT_NE(held_out_data(other, contents), first);
    }
    contents["validation.0"] = "2 bytes, c";
    EXPECT_NE(held_out_data(options, contents), first) << "a file's contents, loss weights included";
}

TEST_F(BestCheckpointTest, is_one_that_exists) {
    EXPECT_FALSE(best_evaluation(*files_, output_, "").has_value());
    train(4, 3e-3);
    double const best = evaluations().at(4);
    std::ofstream(output_ / "metrics.jsonl", std::ios::app) << R"({"step":1,"eval_loss":0.1,"eval_loss_weight":1})"
                                                            << "\n"
                                                            << R"({"step":4,"eval_loss":null,"eval_loss_weight":1})"
                                                            << "\n"
                                                            << R"({"step":4,"eval_lo)";
    auto const found = best_evaluation(*files_, output_, held_out(output_));
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->step, 4) << "step 1 has no checkpoint";
    EXPECT_EQ(found->loss, best);
}

TEST_F(BestCheckpointTest, needs_a_checkpoint_at_every_evaluation) {
    RunOptions options = resolve(options_for(output_, 4, 1e-3), 1, *files_);
    EXPECT_THAT(problems(options, 1), ElementsAre());
    options.eval.every = 3;
    EXPECT_THAT(problems(options, 1),
                ElementsAre(HasSubstr("eval.every (3) must be a multiple of checkpoint.every (2)")));
}

TEST_F(BestCheckpointTest, asked_for_where_nothing_was_evaluated_is_an_error) {
    RunOptions const options = options_for(output_, 4, 1e-3);
    CheckpointOptions where = options.checkpoint;
    where.resume = "best";
    EXPECT_THROW(find_checkpoint(where, options.output_dir, *alone_, *files_), Error);
}

}  // namespace
}  // namespace perigee
