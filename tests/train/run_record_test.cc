// What a run leaves beside its metrics: run.json, samples.jsonl, blocks.jsonl.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "config/config.h"
#include "support/temporary_folder.h"
#include "support/thread_comm.h"
#include "train/trainer.h"

namespace perigee {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class RunRecordTest : public ::testing::Test {
  protected:
    RunOptions tiny(std::string const& more) const {
        RunOptions o = parse_config(R"(
model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 3, num_attention_heads: 2, num_key_value_heads: 1}
attention: {kind: moba, block_size: 8, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 64}
train: {steps: 4, global_batch_size: 2, micro_batch_size: 1}
eval: {every: 2, samples: 2}
generate: {max_tokens: 5}
threads: 1
log: {progress: false}
)" + more,
                                    "tiny", {});
        o.output_dir = folder_.path().string();
        return resolve(o, 1, *files_);
    }
    std::vector<json> lines(std::string const& name) const {
        std::vector<json> found;
        std::istringstream text(files_->read_text(folder_.path() / name, 1 << 20));
        for (std::string line; std::getline(text, line);) found.push_back(json::parse(line));
        return found;
    }

    std::unique_ptr<FileSystem> files_ = make_file_system();
    testing::TemporaryFolder folder_;
};

TEST_F(RunRecordTest, says_what_ran) {
    RunOptions const options = tiny("");
    testing::run_ranks(2, [&](HostComm& world) {
        Trainer(options, world, *files_, "", nullptr, {"perigee 1.2 (abc)", 12345}).run();
    });
    json const record = json::parse(files_->read_text(folder_.path() / "run.json", 1 << 20));
    EXPECT_EQ(record["program"], "perigee 1.2 (abc)");
    EXPECT_EQ(record["memory_planned_bytes"], 12345);
    EXPECT_EQ(record["ranks"], 2);
    EXPECT_EQ(record["first_step"], 0);
    EXPECT_THAT(record["hardware"].get<std::string>(), HasSubstr("2 ranks on "));
    EXPECT_THAT(record["hardware"].get<std::string>(), HasSubstr("; 1 host: "));
    EXPECT_THAT(record["layout"].get<std::string>(), HasSubstr("dp 2"));
    EXPECT_EQ(record["config"]["train"]["steps"], 4);
    EXPECT_EQ(record["config"]["data"]["sequence_length"], 64);
    EXPECT_GT(record["parameters"].get<int64_t>(), 10000);
    EXPECT_THAT(record["started"].get<std::string>(), ::testing::MatchesRegex("20..-..-..T..:..:..Z"));
    EXPECT_FALSE(files_->exists(folder_.path() / "samples.jsonl")) << "not asked for";
    EXPECT_FALSE(files_->exists(folder_.path() / "blocks.jsonl")) << "not asked for";
}

TEST_F(RunRecordTest, evaluations_leave_texts_and_choices_of_blocks_where_keys_ask) {
    RunOptions options = tiny("");
    options.eval.prompt = "Once";
    options.eval.blocks = true;
    testing::run_ranks(2, [&](HostComm& world) { Trainer(options, world, *files_, "").run(); });
    auto const samples = lines("samples.jsonl"), blocks = lines("blocks.jsonl");
    ASSERT_EQ(samples.size(), 2u);
    ASSERT_EQ(blocks.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(samples[i]["step"], 2 * (i + 1));
        EXPECT_EQ(samples[i]["prompt"], "Once");
        EXPECT_TRUE(samples[i]["text"].is_string());
        EXPECT_EQ(blocks[i]["step"], 2 * (i + 1));
        ASSERT_EQ(blocks[i]["layers"].size(), 2u) << "the last layer is full";
        for (json const& layer : blocks[i]["layers"]) {
            ASSERT_EQ(layer["map"].size(), 8u);
            for (size_t row = 0; row < 8; ++row) {
                EXPECT_EQ(layer["map"][row][row], 1) << "the local block is always attended";
                double past = 0;
                for (size_t column = 0; column < row; ++column) past += layer["map"][row][column].get<double>();
                EXPECT_NEAR(past, row > 0, 0.01) << "one past block of each head";
            }
        }
    }
}

TEST_F(RunRecordTest, every_layout_leaves_the_same_choices) {
    auto const left = [&](std::string const& parallel, int ranks) {
        testing::TemporaryFolder const folder;
        RunOptions options = tiny(parallel);
        options.output_dir = folder.path().string();
        options.eval.prompt = "Once";
        options.eval.blocks = true;
        options.train.steps = 2;
        testing::run_ranks(ranks, [&](HostComm& world) { Trainer(options, world, *files_, "").run(); });
        EXPECT_THAT(files_->read_text(folder.path() / "samples.jsonl", 1 << 20), HasSubstr("Once")) << parallel;
        return json::parse(files_->read_text(folder.path() / "blocks.jsonl", 1 << 20))["layers"];
    };
    json const alone = left("", 1);
    for (std::string const parallel : {"parallel: {shard: weights}", "parallel: {context: 2}"})
        EXPECT_EQ(left(parallel, 2), alone) << parallel;
}

TEST_F(RunRecordTest, asking_for_them_changes_no_step) {
    auto const losses = [&](std::string const& prompt, bool blocks) {
        RunOptions options = tiny("");
        options.checkpoint.every = 0;
        options.eval.prompt = prompt;
        options.eval.blocks = blocks;
        testing::TemporaryFolder const folder;
        options.output_dir = folder.path().string();
        auto const alone = make_single_host_comm();
        Trainer(options, *alone, *files_, "").run();
        std::vector<std::string> found;
        std::istringstream text(files_->read_text(folder.path() / "metrics.jsonl", 1 << 20));
        for (std::string line; std::getline(text, line);)
            if (json const metric = json::parse(line); metric.contains("loss")) found.push_back(metric["loss"].dump());
        return found;
    };
    auto const plain = losses("", false);
    ASSERT_EQ(plain.size(), 4u);
    EXPECT_EQ(losses("Once", true), plain);
}

}  // namespace
}  // namespace perigee
