#include "train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <regex>

#include "config/config.h"
#include "data/indexed_dataset.h"
#include "support/random.h"
#include "support/temporary_folder.h"
#include "support/thread_comm.h"
#include "support/tiny_tokenizer.h"

namespace perigee {
namespace {

using ::testing::HasSubstr;

/// A tiny hybrid run on made-up data.
RunOptions tiny(Path const& output) {
    RunOptions o = parse_config(R"(
model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1}
attention: {kind: moba, block_size: 16, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 64}
train: {steps: 4, global_batch_size: 4, micro_batch_size: 1}
threads: 1
log: {progress: false}
)",
                                "tiny", {});
    o.output_dir = output.string();
    return resolve(o, 1, *make_file_system());
}

std::vector<std::byte> bits(TensorView x) { return {x.data, x.data + x.bytes()}; }

class TrainerTest : public ::testing::Test {
  protected:
    std::unique_ptr<FileSystem> files_ = make_file_system();
    testing::TemporaryFolder folder_;
    std::unique_ptr<HostComm> alone_ = make_single_host_comm();
};

TEST_F(TrainerTest, steps_that_are_not_finite_leave_weights_moments_and_update_count_untouched) {
    RunOptions options = tiny(folder_.path() / "run");
    options.train.max_skipped_in_a_row = 2;
    Trainer trainer(options, *alone_, *files_, "");
    trainer.step();
    ASSERT_EQ(trainer.state().applied_updates, 1);
    Session& session = trainer.session();
    float& weight = session.layout().view(session.weights().flat(), "model.norm.weight").as<float>()[0];
    float const before = weight;
    weight = std::numeric_limits<float>::quiet_NaN();
    auto const poisoned = bits(session.weights().flat());
    for (int i = 0; i < 2; ++i) {
        StepReport const r = trainer.step();
        EXPECT_TRUE(r.skipped);
        EXPECT_FALSE(std::isfinite(r.loss) && std::isfinite(r.grad_norm));
    }
    EXPECT_TRUE(bits(session.weights().flat()) == poisoned);
    EXPECT_EQ(trainer.state().applied_updates, 1);
    EXPECT_EQ(trainer.state().step, 3);
    try {
        trainer.step();
        FAIL() << "a third skipped step in a row must end the run";
    } catch (Error const& e) {
        EXPECT_EQ(e.category(), Category::numeric);
        EXPECT_THAT(e.what(), HasSubstr("step 4"));
    }
    weight = before;
    EXPECT_FALSE(trainer.step().skipped) << "the moments were poisoned too";
    EXPECT_EQ(trainer.state().applied_updates, 2);
}

TEST_F(TrainerTest, log_lines_come_by_time_or_by_steps) {
    auto const lines_of = [&](std::string const& name, int64_t every, double seconds) {
        RunOptions options = tiny(folder_.path() / name);
        options.log.every = every;
        options.log.seconds = seconds;
        Trainer(options, *alone_, *files_, "").run();
        std::string const log = files_->read_text(folder_.path() / name / "log.txt", 1 << 20);
        std::vector<int64_t> steps;
        std::regex const row(R"(  +(\d+) +[0-9.]+ +[0-9.]+ )");
        for (std::sregex_iterator line(log.begin(), log.end(), row), end; line != end; ++line)
            steps.push_back(std::stoll((*line)[1]));
        return steps;
    };
    using ::testing::ElementsAre;
    EXPECT_THAT(lines_of("time", 0, 1000), ElementsAre(1, 4)) << "the first and the last";
    EXPECT_THAT(lines_of("no time", 0, 0), ElementsAre(1, 2, 3, 4));
    EXPECT_THAT(lines_of("steps", 2, 1000), ElementsAre(1, 2, 4));
}

TEST_F(TrainerTest, a_step_says_where_its_time_went) {
    Trainer trainer(tiny(folder_.path() / "run"), *alone_, *files_, "");
    trainer.step();
    StepReport const r = trainer.step();
    auto const sum = [](StepReport const& step) {
        return std::accumulate(step.phases.begin() + 1, step.phases.end(), 0.0);
    };
    for (Phase const phase : {Phase::data, Phase::forward, Phase::backward, Phase::communication, Phase::optimizer})
        EXPECT_GT(r.phases.at(static_cast<size_t>(phase)), 0);
    EXPECT_LE(sum(r), r.seconds);
    bool complete = sum(r) > 0.9 * r.seconds;
    for (int i = 0; i < 20 && !complete; ++i) {  // the machine may have others to serve just then
        StepReport const later = trainer.step();
        complete = sum(later) > 0.9 * later.seconds;
    }
    EXPECT_TRUE(complete) << "much of a step has no phase";
    EXPECT_EQ(r.tokens_so_far, 2 * 4 * 64);
    EXPECT_DOUBLE_EQ(r.epochs_so_far,
                     8.0 / static_cast<double>(trainer.session().open(Split::train)->samples_per_epoch()));
    EXPECT_GT(r.memory.used, 0);
    EXPECT_GE(r.memory.peak, r.memory.used);
}

TEST_F(TrainerTest, tokens_so_far_count_samples_of_every_length_across_resumes) {
    RunOptions options = tiny(folder_.path() / "run");
    {
        Trainer trainer(options, *alone_, *files_, "");
        trainer.step();
        EXPECT_EQ(trainer.step().tokens_so_far, 2 * 4 * 64);
        trainer.save(true);
    }
    options.data.sequence_length = 32;
    Trainer resumed(options, *alone_, *files_, "");
    StepReport const r = resumed.step();
    EXPECT_EQ(r.consumed_samples, 3 * 4);
    EXPECT_EQ(r.tokens_so_far, 2 * 4 * 64 + 4 * 32);
}

TEST_F(TrainerTest, tokens_of_an_older_checkpoint_are_counted_by_its_samples) {
    RunOptions const options = tiny(folder_.path() / "run");
    Session session(options, *alone_, *files_);
    Learner learner(session);
    learner.initialise(1);
    RunState state{.step = 5, .consumed_samples = 20, .info = {}};
    auto const data = session.open(Split::train);
    std::vector<Batch> batches;
    for (int64_t sample = 20; sample < 24; ++sample) batches.push_back(make_batch(*data, sample, 1));
    EXPECT_EQ(learner.step(batches, state).tokens_so_far, 24 * 64);
    EXPECT_EQ(state.consumed_tokens, 24 * 64);
}

TEST_F(TrainerTest, layers_switch_between_moba_and_full_at_their_step) {
    RunOptions moba = tiny(folder_.path() / "moba"), switched = tiny(folder_.path() / "switched");
    switched.attention.schedule = {{.step = 2, .kind = AttentionKind::full}};
    Trainer a(moba, *alone_, *files_, ""), b(switched, *alone_, *files_, "");
    for (int step = 0; step < 2; ++step) EXPECT_EQ(a.step().loss, b.step().loss);
    EXPECT_NE(a.step().loss, b.step().loss);
}

/// 40 documents of 100 tokens in which only even samples of 64 tokens carry loss, on every ninth token: with two ranks
/// and one sample per rank and pass, the second rank never has any.
std::string half_masked_data(FileSystem& files, Path const& prefix) {
    IndexedDatasetWriter writer(files, prefix, 257, /*with_weights=*/true);
    int64_t token = 0;
    for (int document = 0; document < 40; ++document) {
        std::vector<int32_t> ids;
        std::vector<float> loss;
        for (int i = 0; i < 100; ++i, ++token) {
            ids.push_back((document * 7 + i * 13) % 256);
            int64_t const sample = (token - 1) / 64;  // of the sample in which this token is a target
            loss.push_back(sample % 2 == 0 && token % 9 == 0);
        }
        writer.add_document(ids, loss);
    }
    writer.finish();
    return prefix.string();
}

struct Trained {
    std::vector<double> losses;
    std::vector<float> weights;
};

Trained train(RunOptions options, int ranks, FileSystem& files) {
    Trained result;
    testing::run_ranks(ranks, [&](HostComm& world) {
        Trainer trainer(options, world, files, "");
        std::vector<double> losses;
        for (int64_t step = 0; step < options.train.steps; ++step) losses.push_back(trainer.step().loss);
        if (world.rank() != 0) return;
        Session& session = trainer.session();
        result.losses = losses;
        for (ParamLayout::Entry const& entry : session.layout().entries()) {
            TensorView const w = session.layout().view(session.weights().flat(), entry.spec.name);
            result.weights.insert(result.weights.end(), w.as<float>(), w.as<float>() + w.size());
        }
    });
    return result;
}

TEST_F(TrainerTest, a_rank_whose_tokens_are_all_masked_contributes_nothing_and_breaks_nothing) {
    RunOptions options = tiny(folder_.path() / "one");
    options.data.mock_data = false;
    options.data.shuffle = false;
    options.data.train = {{.path = half_masked_data(*files_, folder_.path() / "masked")}};
    Trained const one = train(options, 1, *files_);
    options.output_dir = (folder_.path() / "two").string();
    Trained const two = train(options, 2, *files_);
    ASSERT_EQ(one.losses.size(), 4u);
    for (size_t step = 0; step < 4; ++step)
        EXPECT_NEAR(two.losses[step] / one.losses[step], 1.0, 1e-6) << "step " << step;
    EXPECT_LT(testing::relative_error(two.weights, one.weights), 1e-5);
}

/// Options of runs whose data carry loss in one global batch in `every`.
RunOptions with_rare_loss(FileSystem& files, Path const& folder, int64_t every) {
    RunOptions options = tiny(folder / "run");
    int64_t const tokens = options.train.global_batch_size * options.data.sequence_length;
    IndexedDatasetWriter writer(files, folder / "rare", 257, /*with_weights=*/true);
    std::vector<int32_t> const ids(static_cast<size_t>(3 * every * tokens + 1), 65);
    std::vector<float> loss(ids.size(), 0);
    for (int64_t batch = 0; batch < 3 * every; batch += every)
        std::fill_n(loss.begin() + batch * tokens + 1, tokens, 1);
    writer.add_document(ids, loss);
    writer.finish();
    options.data.mock_data = false;
    options.data.shuffle = false;
    options.data.train = {{.path = (folder / "rare").string()}};
    return options;
}

TEST_F(TrainerTest, a_global_batch_without_loss_changes_nothing_and_training_goes_on) {
    RunOptions options = with_rare_loss(*files_, folder_.path(), 3);
    options.train.steps = 10;
    Trainer trainer(options, *alone_, *files_, "");
    auto const weights = [&] { return bits(trainer.session().weights().flat()); };
    auto before = weights();
    for (int64_t step = 1; step <= 7; ++step) {
        StepReport const r = trainer.step();
        bool const empty = step % 3 != 1;
        EXPECT_EQ(r.skipped, empty) << step;
        EXPECT_EQ(std::isnan(r.loss), empty) << step;
        EXPECT_EQ(r.consumed_samples, step * options.train.global_batch_size);
        EXPECT_EQ(weights() == before, empty) << step;
        before = weights();
    }
}

TEST_F(TrainerTest, data_that_never_carry_loss_are_an_error_that_names_the_step) {
    RunOptions options = with_rare_loss(*files_, folder_.path(), 1000);
    options.train.steps = 200;
    Trainer trainer(options, *alone_, *files_, "");
    EXPECT_TRUE(std::isfinite(trainer.step().loss));
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(trainer.step().skipped);
    EXPECT_EQ(trainer.state().without_loss_in_a_row, 100) << "a resumed run counts on from there";
    try {
        trainer.step();
        FAIL() << "no token carries loss";
    } catch (Error const& e) {
        EXPECT_EQ(e.category(), Category::data);
        EXPECT_THAT(e.what(), HasSubstr("step 102"));
    }
}

TEST_F(TrainerTest, validation_data_without_loss_are_an_error_before_the_first_step) {
    RunOptions options = tiny(folder_.path() / "run");
    IndexedDatasetWriter writer(*files_, folder_.path() / "none", 257, /*with_weights=*/true);
    writer.add_document(std::vector<int32_t>(2000, 65), std::vector<float>(2000, 0));
    writer.finish();
    options.data.mock_data = false;
    options.data.train = with_rare_loss(*files_, folder_.path(), 1).data.train;
    options.data.validation = {{.path = (folder_.path() / "none").string()}};
    options.eval.every = 2;
    Trainer trainer(options, *alone_, *files_, "");
    try {
        trainer.run();
        FAIL() << "no validation token carries loss";
    } catch (Error const& e) {
        EXPECT_EQ(e.category(), Category::data);
        EXPECT_THAT(e.what(), HasSubstr("validation samples"));
    }
    EXPECT_EQ(trainer.state().step, 0);
}

TEST_F(TrainerTest, a_vocabulary_larger_than_the_models_is_an_error_that_says_both_sizes) {
    Path const path = folder_.path() / "tokenizer.json";
    files_->replace_text(path, testing::TinyTokenizer{}.json());
    RunOptions options;
    options.data.tokenizer = path.string();
    EXPECT_EQ(resolve(options, 1, *files_).model.vocab_size, 320);  // 260 tokens, up to a multiple of 64
    options.model.vocab_size = 260;
    EXPECT_EQ(resolve(options, 1, *files_).model.vocab_size, 260);
    options.model.vocab_size = 259;
    try {
        resolve(options, 1, *files_);
        FAIL() << "the last token has no row";
    } catch (Error const& e) {
        EXPECT_EQ(e.category(), Category::config);
        EXPECT_THAT(e.what(), HasSubstr("tokenizer.json has 260 tokens, more than model.vocab_size, which is 259"));
    }
}

}  // namespace
}  // namespace perigee
