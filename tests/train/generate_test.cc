// One text from a prompt: whether there is room for an answer.
#include "train/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config.h"
#include "support/temporary_folder.h"
#include "train/trainer.h"

namespace perigee {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMostTokens = 64;

class GenerateTest : public ::testing::Test {
  protected:
    RunOptions options(std::string const& prompt) const {
        RunOptions o = parse_config(R"(
model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1,
        max_position_embeddings: 64}
attention: {kind: full}
data: {mock_data: true, sequence_length: 64}
train: {steps: 2, global_batch_size: 2, micro_batch_size: 1}
eval: {every: 2, samples: 2}
generate: {max_tokens: 5}
device: cpu
threads: 1
log: {progress: false}
)",
                                    "generate", {});
        o.generate.prompt = prompt;
        o.output_dir = folder_.path().string();
        return resolve(o, 1, *files_);
    }
    /// What generate() hands out, or the error.
    std::string answer(std::string const& prompt) {
        Session session(options(prompt), *alone_, *files_);
        std::string text;
        try {
            generate(session, {}, [&](std::string const& more) { text += more; });
        } catch (Error const& error) {
            return fmt::format("({}) {}", to_string(error.category()), error.what());
        }
        return text.empty() ? "nothing" : "a text";
    }

    std::unique_ptr<FileSystem> files_ = make_file_system();
    std::unique_ptr<HostComm> alone_ = make_single_host_comm();
    testing::TemporaryFolder folder_;
};

TEST_F(GenerateTest, a_prompt_that_leaves_no_room_is_refused) {
    std::string const said = " tokens; model.max_position_embeddings is 64, so a prompt may have at most 63";
    EXPECT_EQ(answer(std::string(kMostTokens, 'a')), "(data) generate.prompt has 64" + said);
    EXPECT_EQ(answer(std::string(1000, 'a')), "(data) generate.prompt has 1000" + said);
    EXPECT_EQ(answer(std::string(kMostTokens - 1, 'a')), "a text");
}

TEST_F(GenerateTest, an_evaluation_warns_of_such_a_prompt_and_training_goes_on) {
    RunOptions o = options("a");
    o.eval.prompt = std::string(kMostTokens, 'a');
    Trainer(o, *alone_, *files_, "").run();
    EXPECT_THAT(files_->read_text(folder_.path() / "log.txt", 1 << 20),
                HasSubstr("no text is generated: the prompt has 64 tokens"));
    EXPECT_THAT(files_->read_text(folder_.path() / "samples.jsonl", 1 << 20), HasSubstr("\"text\":\"\""));
}

}  // namespace
}  // namespace perigee
