// A run that is saved in one layout and resumed in another goes on as if nothing had happened.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "config/config.h"
#include "support/memory_file_system.h"
#include "support/thread_comm.h"
#include "train/trainer.h"

namespace perigee {
namespace {

constexpr int64_t kSavedAt = 4, kLayoutSteps = 8;

/// Ranks, and what to change in the options for them.
struct SavedLayout {
    int ranks;
    std::vector<std::string> overrides;
    std::string str() const { return fmt::format("{} ranks, {}", ranks, fmt::join(overrides, " ")); }
};

/// The first kPlain layouts below train a model without key convolution, the others one with it.
constexpr size_t kPlain = 8;

/// Every axis alone and all of them together, every stage of sharding, both ways of attention.
std::vector<SavedLayout> const kSavedLayouts = {
    {1, {"train.micro_batch_size=2"}},
    {2, {"parallel.shard=weights"}},
    {8, {"parallel.zero=false"}},
    {2, {"parallel.context=2", "parallel.context_mode=ulysses", "optimizer.offload=true"}},
    {4, {"parallel.context=4", "parallel.context_mode=allgather", "parallel.shard=gradients"}},
    {2, {"parallel.tensor=2"}},
    {8, {"parallel.tensor=2", "parallel.context=2", "parallel.shard=weights"}},
    {8, {"parallel.tensor=4", "parallel.context=2", "parallel.zero=false"}},
    {1, {"attention.key_conv=3"}},
    {4, {"attention.key_conv=3", "parallel.tensor=2", "parallel.shard=weights"}},
};

RunOptions options_of(SavedLayout const& layout, std::vector<std::string> const& more) {
    std::vector<std::string> overrides = layout.overrides;
    overrides.insert(overrides.end(), more.begin(), more.end());
    RunOptions options = parse_config(R"(
output_dir: /run
device: cpu
model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 3, num_attention_heads: 8, num_key_value_heads: 4}
attention: {kind: moba, block_size: 8, top_k: 3, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 64}
train: {global_batch_size: 8, micro_batch_size: 1}
schedule: {warmup_steps: 3}
checkpoint: {async: false}
threads: 1
log: {progress: false}
)",
                                      "resume", overrides);
    options.train.steps = kLayoutSteps;
    options = resolve(options, 1, *make_file_system());
    EXPECT_EQ(problems(options, layout.ranks), std::vector<std::string>());
    return options;
}

/// Losses of the steps from the checkpoint in `files`, or the start, to the end; saves at step kSavedAt.
std::vector<double> train(SavedLayout const& layout, std::vector<std::string> const& more, FileSystem& files) {
    RunOptions const options = options_of(layout, more);
    std::vector<double> losses;
    testing::run_ranks(layout.ranks, [&](HostComm& world) {
        Trainer trainer(options, world, files, "");
        while (trainer.state().step < kLayoutSteps) {
            StepReport const r = trainer.step();
            if (world.rank() == 0) losses.push_back(r.loss);
            if (r.step == kSavedAt) trainer.save(/*last=*/false);
        }
        EXPECT_EQ(trainer.state().consumed_samples, kLayoutSteps * options.train.global_batch_size);
    });
    return losses;
}

/// The unbroken run of a layout, and the disk it leaves, which holds a checkpoint from the middle.
struct Unbroken {
    testing::MemoryFileSystem files;
    std::vector<double> losses;
};

/// Of cases that run the same code, sanitizers see a part.
constexpr size_t kEvery = PERIGEE_SANITIZED ? 2 : 1;
using Pairs = std::vector<std::pair<size_t, size_t>>;

class ResumeLayout : public ::testing::Test {
  protected:
    void go_on(Pairs const& pairs) {
        for (size_t i = 0; i < pairs.size(); i += kEvery) go_on(pairs[i].first, pairs[i].second);
    }
    void go_on(size_t from, size_t to) {
        SCOPED_TRACE(fmt::format("saved by {}; resumed by {}", kSavedLayouts[from].str(), kSavedLayouts[to].str()));
        Unbroken& whole = runs_[from];
        if (whole.losses.empty()) whole.losses = train(kSavedLayouts[from], more_, whole.files);
        ASSERT_EQ(std::ssize(whole.losses), kLayoutSteps);
        auto const files = whole.files.copy();
        std::vector<double> const rest = train(kSavedLayouts[to], more_, *files);
        ASSERT_EQ(std::ssize(rest), kLayoutSteps - kSavedAt) << "the run must start at the checkpoint";
        for (size_t i = 0; i < rest.size(); ++i) {
            double const expected = whole.losses[kSavedAt + i];
            EXPECT_NEAR(rest[i] / expected, 1, from == to ? 0 : 1e-6) << "step " << kSavedAt + i + 1;
        }
    }

    std::vector<std::string> more_;  ///< options of every run

  private:
    std::map<size_t, Unbroken> runs_;
};

TEST_F(ResumeLayout, GoesOnWithTheLossesOfTheUnbrokenRun) {
    go_on({{6, 6}, {0, 6}, {9, 8}, {6, 0}, {2, 5}, {0, 4}, {7, 1}, {8, 9}, {9, 9}});
}

// The dropout mask depends on the tokens, not on the ranks.
TEST_F(ResumeLayout, GoesOnWithAdapters) {
    more_ = {"lora.rank=4", "lora.dropout=0.25"};
    go_on({{0, 6}, {6, 6}, {7, 1}});
}
TEST_F(ResumeLayout, GoesOnWithFrozenParameters) {
    more_ = {"train.freeze=[model.embed_tokens.weight, model.layers.0.*]"};
    go_on({{1, 1}, {6, 4}, {2, 3}});
}

// Every pair: tests/train/resume_layout_loop_test.sh runs them.
TEST_F(ResumeLayout, DISABLED_WholeMatrix) {
    for (size_t from = 0; from < kPlain; ++from)
        for (size_t to = 0; to < kPlain; ++to) go_on(from, to);
}

}  // namespace
}  // namespace perigee
