// What each policy of guard.spike makes of a run whose data have one bad batch, or nothing else from there on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "config/config.h"
#include "data/indexed_dataset.h"
#include "support/temporary_folder.h"
#include "support/thread_comm.h"
#include "train/session.h"
#include "train/trainer.h"

namespace perigee {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kLength = 32, kBatch = 4, kSteps = 120, kBadStep = 100;

/// Samples in order: counting modulo 64, but for the batches of steps [first, first + bad).
std::string write_data(FileSystem& files, Path const& prefix, int64_t bad, int64_t first = kBadStep) {
    IndexedDatasetWriter writer(files, prefix, 257, /*with_weights=*/false);
    Philox const random(3, Purpose::mock_data);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < 2 * kSteps * kBatch * kLength; ++i) {
        int64_t const step = i / (kBatch * kLength) + 1;
        bool const shared = i % (kBatch * kLength) == 0;  // the step before predicts it
        bool const is_bad = step >= first && step < first + bad && !shared;
        ids.push_back(static_cast<int32_t>(is_bad ? random.u64(static_cast<uint64_t>(i)) % 256 : i % 64));
    }
    writer.add_document(ids, {});
    writer.finish();
    return prefix.string();
}

struct Line {
    double loss = 0;
    bool skipped = false, spike = false;
    bool operator==(Line const&) const = default;
};

class Rollback : public ::testing::Test {
  protected:
    RunOptions options(std::string const& name, SpikePolicy policy, int64_t bad = 1) {
        RunOptions o = parse_config(R"(
model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sequence_length: 32, shuffle: false}
train: {global_batch_size: 4, micro_batch_size: 1}
optimizer: {lr: 5e-3}
schedule: {decay: constant}
guard: {spike_window: 32}
checkpoint: {every: 20, async: false}
threads: 1
log: {progress: false}
)",
                                    "tiny", {});
        Path const data = folder_.path() / fmt::format("data{}", bad);
        if (!files_->exists(data.string() + ".idx")) write_data(*files_, data, bad);
        o.data.train = {{.path = data.string()}};
        o.output_dir = (folder_.path() / name).string();
        o.train.steps = kSteps;
        o.guard.spike = policy;
        return resolve(o, 1, *files_);
    }
    RunState run(RunOptions const& o, int ranks = 1) {
        RunState state;
        testing::run_ranks(ranks, [&](HostComm& world) {
            Trainer trainer(o, world, *files_, "");
            trainer.run();
            if (world.rank() == 0) state = trainer.state();
        });
        return state;
    }
    std::map<int64_t, Line> lines(RunOptions const& o) {
        std::map<int64_t, Line> result;
        std::istringstream text(files_->read_text(Path(o.output_dir) / "metrics.jsonl", 1 << 24));
        for (std::string line; std::getline(text, line);) {
            auto const json = nlohmann::json::parse(line);
            EXPECT_FALSE(result.contains(json.at("step"))) << line;
            result[json.at("step")] = {json.at("loss"), json.at("skipped"), json.contains("spike_sigmas")};
        }
        return result;
    }
    std::vector<std::string> checkpoints(RunOptions const& o) {
        auto names = files_->list(Path(o.output_dir) / "checkpoints");
        std::ranges::sort(names);
        return names;
    }
    std::string error_of(RunOptions const& o) {
        try {
            run(o);
        } catch (Error const& e) {
            EXPECT_EQ(e.category(), Category::numeric);
            return e.what();
        }
        return "";
    }

    std::unique_ptr<FileSystem> files_ = make_file_system();
    testing::TemporaryFolder folder_;
};

TEST_F(Rollback, warn_takes_the_step_and_says_so) {
    RunOptions const o = options("warn", SpikePolicy::warn);
    EXPECT_EQ(run(o).applied_updates, kSteps);
    auto const all = lines(o);
    EXPECT_TRUE(all.at(kBadStep).spike);
    for (int64_t step = 1; step < kBadStep; ++step) EXPECT_FALSE(all.at(step).spike) << step;
}

TEST_F(Rollback, skip_leaves_the_update_out) {
    RunOptions const o = options("skip", SpikePolicy::skip);
    RunState const state = run(o);
    EXPECT_EQ(state.applied_updates, kSteps - 1);
    EXPECT_EQ(state.consumed_samples, kSteps * kBatch);
    auto const all = lines(o);
    for (int64_t step = 1; step <= kSteps; ++step) {
        EXPECT_EQ(all.at(step).skipped, step == kBadStep) << step;
        EXPECT_EQ(all.at(step).spike, step == kBadStep) << step;
    }
}

TEST_F(Rollback, skip_ends_a_run_without_end_of_spikes) {
    EXPECT_THAT(error_of(options("skip", SpikePolicy::skip, 50)), HasSubstr("4 steps in a row were skipped"));
}

TEST_F(Rollback, stop_ends_the_run_before_the_update) {
    RunOptions const o = options("stop", SpikePolicy::stop);
    EXPECT_THAT(error_of(o), HasSubstr("step 100: stopped before the update"));
    EXPECT_EQ(checkpoints(o).back(), "step_00000080");
}

TEST_F(Rollback, returns_to_the_last_good_checkpoint_and_goes_on_after_the_data) {
    RunOptions const o = options("rollback", SpikePolicy::rollback);
    RunState const state = run(o);
    EXPECT_EQ(state.step, kSteps);
    EXPECT_EQ(state.applied_updates, kSteps);
    EXPECT_EQ(state.consumed_samples, (kSteps + kBadStep - 80) * kBatch);
    EXPECT_EQ(state.spikes.rollbacks, 1);
    EXPECT_EQ(state.spikes.rolled_back_to, 80);
    auto const all = lines(o);
    EXPECT_EQ(std::ssize(all), kSteps);
    for (auto const& [step, line] : all) EXPECT_FALSE(line.spike || line.skipped) << step;
}

TEST_F(Rollback, a_stop_right_after_it_saves_what_it_changed) {
    RunOptions const o = options("stopped", SpikePolicy::rollback);
    testing::run_ranks(1, [&](HostComm& world) {
        Trainer trainer(o, world, *files_, "");
        while (trainer.accept(trainer.step()))
            if (trainer.state().step % o.checkpoint.every == 0) trainer.save(false);
        ASSERT_EQ(trainer.state().step, 80);
        trainer.save(true);
        auto const saved = Checkpoint::open(*files_, world, checkpoint_root(o.output_dir) / step_name(80));
        EXPECT_EQ(saved.state().consumed_samples, kBadStep * kBatch);
        EXPECT_EQ(saved.state().consumed_samples, trainer.state().consumed_samples);
        EXPECT_EQ(saved.state().spikes.rollbacks, 1);
    });
}

TEST_F(Rollback, is_said_once_with_its_reason) {
    RunOptions const o = options("said", SpikePolicy::rollback);
    ::testing::internal::CaptureStderr();
    run(o, 2);
    std::string const said = ::testing::internal::GetCapturedStderr();
    for (std::string const line : {"are a spike: loss +", "step 100: rolled back to step 80"}) {
        EXPECT_THAT(said, HasSubstr(line));
        EXPECT_EQ(said.find(line), said.rfind(line)) << line;
    }
}

TEST_F(Rollback, tells_when_the_run_then_ends_after_more_epochs_than_asked_for) {
    RunOptions o = options("epochs", SpikePolicy::rollback);
    o.train.epochs = 1;
    o = with_steps_of_epochs(o, *files_);
    ::testing::internal::CaptureStderr();
    run(o);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr(fmt::format("train.epochs (1) are {} steps of 4 samples, but the 80 steps before took 400",
                                      o.train.steps)));
}

TEST_F(Rollback, is_the_same_bit_for_bit_also_when_resumed_and_alike_on_two_ranks) {
    RunOptions const whole = options("whole", SpikePolicy::rollback), two = options("two", SpikePolicy::rollback);
    run(whole);
    RunOptions broken = options("broken", SpikePolicy::rollback);
    for (int64_t const until : {90, 95, 110}) {  // between the last checkpoint and the spike, and after the rollback
        broken.train.steps = until;
        run(broken);
    }
    broken.train.steps = kSteps;
    run(broken);
    auto const a = lines(whole), b = lines(broken);
    // The broken run rolls back to where it was stopped last before the spike, so compare what is not redone.
    for (int64_t step = 1; step <= 90; ++step) EXPECT_EQ(a.at(step), b.at(step)) << step;
    RunOptions const again = options("again", SpikePolicy::rollback);
    run(again);
    EXPECT_EQ(lines(again), a);
    run(two, 2);
    auto const c = lines(two);
    for (int64_t step = 1; step <= kSteps; ++step) EXPECT_NEAR(c.at(step).loss, a.at(step).loss, 1e-4) << step;
}

TEST_F(Rollback, happens_a_limited_number_of_times_and_each_time_further_back) {
    RunOptions o = options("limit", SpikePolicy::rollback, 100);
    o.guard.max_rollbacks = 2;
    EXPECT_THAT(error_of(o), HasSubstr("a spike after 2 rollbacks (guard.max_rollbacks)"));
    EXPECT_THAT(checkpoints(o), ::testing::IsSupersetOf({"step_00000060", "step_00000080.rolled_back"}));
}

TEST_F(Rollback, without_a_checkpoint_goes_back_to_the_beginning) {
    RunOptions o = options("none", SpikePolicy::rollback);
    o.checkpoint.every = 0;
    RunState const state = run(o);
    EXPECT_EQ(state.step, kSteps);
    EXPECT_EQ(state.consumed_samples, (kSteps + kBadStep) * kBatch);
}

TEST_F(Rollback, the_checkpoint_before_a_spike_is_never_pruned) {
    RunOptions o = options("kept", SpikePolicy::warn);
    o.checkpoint.keep_last = 1;
    o.train.steps = 140;
    EXPECT_THAT(run(o).spikes.kept, ElementsAre(80));
    EXPECT_THAT(checkpoints(o), ElementsAre("step_00000080", "step_00000140"));
    o.train.steps = 180;  // a resumed run knows it too
    run(o);
    EXPECT_THAT(checkpoints(o), ElementsAre("step_00000080", "step_00000180"));
}

TEST_F(Rollback, the_best_checkpoint_after_it_is_one_that_exists) {
    RunOptions o = options("best", SpikePolicy::rollback);
    o.data.validation = o.data.train;
    o.eval = {.every = 20, .samples = 4};
    o.checkpoint.keep_best = true;
    o.train.steps = 80;
    run(o);
    // The manifest names a best checkpoint that is not there. A run prunes it when a later one is better.
    Path const manifest = checkpoint_root(o.output_dir) / "step_00000080" / kManifestName;
    Manifest known = Manifest::parse(files_->read_text(manifest, kMaxManifestBytes), "");
    known.state.best = {.step = 50, .loss = 0};
    files_->replace_text(manifest, known.to_text());
    o.train.steps = kSteps;
    RunState const state = run(o);
    EXPECT_EQ(state.spikes.rolled_back_to, 80);
    ASSERT_TRUE(state.best);
    EXPECT_EQ(state.best->step % 20, 0);
    EXPECT_THAT(checkpoints(o), ::testing::Contains(step_name(state.best->step)));
}

TEST_F(Rollback, the_checkpoint_that_is_being_saved_counts) {
    RunOptions o = options("async", SpikePolicy::warn);
    o.checkpoint = {.every = 33, .keep_last = 1};
    run(o);
    EXPECT_THAT(checkpoints(o), ElementsAre("step_00000066", "step_00000120"));
}

TEST_F(Rollback, a_resumed_run_judges_by_the_steps_before) {
    RunOptions o = options("resumed", SpikePolicy::warn);
    o.train.steps = kBadStep - 1;
    run(o);
    o.train.steps = kSteps;
    run(o);
    EXPECT_TRUE(lines(o).at(kBadStep).spike);
}

TEST_F(Rollback, another_run_or_other_data_are_not_judged_by_the_steps_before) {
    RunOptions before = options("before", SpikePolicy::skip);
    before.train.steps = 80;
    run(before);
    RunOptions other = options("other", SpikePolicy::skip);
    other.checkpoint.resume = (checkpoint_root(before.output_dir) / "step_00000080").string();
    other.data.mock_data = true;
    EXPECT_EQ(run(other).applied_updates, kSteps) << "another run";
    before.data.train = {{.path = write_data(*files_, folder_.path() / "noise", kSteps, /*first=*/1)}};
    before.train.steps = kSteps;
    EXPECT_EQ(run(before).applied_updates, kSteps) << "other data";
}

}  // namespace
}  // namespace perigee
