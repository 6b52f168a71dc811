// Checkpoints say which run, options and data they are of: a resumed run that is another model is refused, other
// differences are listed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "config/config.h"
#include "data/chat_record.h"
#include "data/fingerprint.h"
#include "data/indexed_dataset.h"
#include "hf/hf_folder.h"
#include "support/memory_file_system.h"
#include "support/temporary_folder.h"
#include "support/thread_comm.h"
#include "train/described.h"
#include "train/trainer.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class Described : public ::testing::Test {
  protected:
    RunOptions options(std::vector<std::string> const& overrides = {}, std::string const& run = "run") {
        RunOptions o = parse_config(R"(
device: cpu
model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2}
attention: {kind: moba, block_size: 16, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 64}
train: {steps: 2, global_batch_size: 2, micro_batch_size: 1}
checkpoint: {async: false}
threads: 1
log: {progress: false}
)",
                                    "tiny", overrides);
        o.output_dir = (folder_.path() / run).string();
        return resolve(o, 2, *files_);
    }
    /// Trains on two ranks; what the log said, or the error's category and message.
    std::string train(RunOptions const& o) {
        ::testing::internal::CaptureStderr();
        std::string error;
        auto const errors = testing::try_ranks(2, [&](HostComm& world) { Trainer(o, world, *files_, "x: 1\n").run(); });
        std::string const said = ::testing::internal::GetCapturedStderr();
        for (auto const& e : errors) {
            try {
                if (e) std::rethrow_exception(e);
            } catch (Error const& e) {
                error = fmt::format("{} error: {}", to_string(e.category()), e.what());
            }
        }
        return error.empty() ? said : error;
    }
    Checkpoint checkpoint(int64_t step, std::string const& run = "run") {
        return Checkpoint::open(*files_, checkpoint_root(folder_.path() / run) / step_name(step));
    }

    testing::TemporaryFolder folder_;
    std::unique_ptr<FileSystem> files_ = make_file_system();
};

TEST_F(Described, CheckpointHasOptionsThatReadBackAndTheRunsId) {
    train(options());
    RunState const state = checkpoint(2).state();
    auto const stored = stored_options(state);
    ASSERT_TRUE(stored.has_value());
    EXPECT_THAT(changes(*stored, options()), IsEmpty());
    EXPECT_EQ(to_yaml(*stored), to_yaml(options()));
    EXPECT_EQ(state.run_id.size(), 16u);
    EXPECT_THAT(files_->read_text(folder_.path() / "run" / "config.yaml", 1000),
                fmt::format("# run {}\nx: 1\n", state.run_id));
    EXPECT_THAT(train(options({"train.steps=3"})), HasSubstr("resumed at step 2"));
    EXPECT_EQ(checkpoint(3).state().run_id, state.run_id);
    train(options({}, "another"));
    EXPECT_NE(checkpoint(2, "another").state().run_id, state.run_id);
}

TEST_F(Described, ResumingAnotherModelIsRefusedWithEveryKeyUnlessAllowed) {
    train(options());
    std::vector<std::string> const keys = {"model.rope_theta=500000",
                                           "model.rms_norm_eps=0.001",
                                           "model.num_key_value_heads=4",
                                           "model.num_attention_heads=2",
                                           "model.hidden_size=64",
                                           "model.tie_word_embeddings=true",
                                           "model.qkv_bias=true",
                                           "model.qk_norm=true",
                                           "model.vocab_size=512",
                                           "model.num_hidden_layers=1",
                                           "model.intermediate_size=128",
                                           "model.rope_scaling={rope_type: linear, factor: 2}",
                                           "attention.kind=full",
                                           "attention.block_size=32",
                                           "attention.top_k=1",
                                           "attention.full_layers={last: 0}",
                                           "attention.schedule=[{step: 1, kind: full}]",
                                           "attention.force_previous=true",
                                           "attention.force_first=true",
                                           "attention.key_conv=3",
                                           "attention.shared_selection=group",
                                           "attention.selection=nearest",
                                           "model.head_dim=16"};
    for (std::string const& key : keys) {
        std::string const name = key.substr(0, key.find('='));
        RunOptions const changed = options({key, "train.steps=3"});
        EXPECT_THAT(train(changed), AllOf(HasSubstr("config error: "), HasSubstr("another model"), HasSubstr(name),
                                          AnyOf(HasSubstr("allow_model_change"), HasSubstr("do not fit the other"))));
    }
    std::string const both = train(options({"model.rope_theta=500000", "attention.top_k=1"}));
    EXPECT_THAT(both,
                AllOf(HasSubstr("  model.rope_theta: 10000.0 -> 500000.0\n"), HasSubstr("  attention.top_k: 2 -> 1")));
    EXPECT_THAT(both, Not(HasSubstr("hidden_size")));
    EXPECT_THAT(train(options({"model.rope_theta=500000", "train.steps=3", "checkpoint.allow_model_change=true"})),
                AllOf(HasSubstr("model.rope_theta: 10000.0 -> 500000.0"), HasSubstr("finished at step 3")));
}

TEST_F(Described, AModelThatTheTensorsDoNotFitIsRefusedEvenWhereAnotherIsAllowed) {
    train(options());
    std::string const allow = "checkpoint.allow_model_change=true";
    for (auto const& [key, why] : {std::pair{"model.hidden_size=64", "`model.embed_tokens.weight` is ["},
                                   {"model.num_hidden_layers=3", "it has no `model.layers.2.input_layernorm.weight`"},
                                   {"attention.key_conv=3", "it has no `model.layers.0.self_attn.k_conv"}})
        for (std::vector<std::string> const& also : {std::vector<std::string>{}, {allow}}) {
            std::vector<std::string> overrides = {key, "train.steps=3"};
            overrides.insert(overrides.end(), also.begin(), also.end());
            EXPECT_THAT(train(options(overrides)),
                        AllOf(HasSubstr("config error: "), HasSubstr("do not fit the other model: "), HasSubstr(why)));
        }
    EXPECT_THAT(train(options({"model.num_hidden_layers=1", "train.steps=3", allow})),
                AllOf(HasSubstr("9 of the checkpoint's "),
                      HasSubstr("do not exist in this model and are ignored, the first is `model.layers.1.input_"),
                      HasSubstr("finished at step 3")));
}

TEST_F(Described, ARunThatBeganFromAFolderGoesOnByTheSameCommand) {
    train(options({}, "first"));
    auto const resume = [&](char const* run, int64_t step) {
        return "checkpoint.resume=" + (checkpoint_root(folder_.path() / run) / step_name(step)).string();
    };
    std::string const from = resume("first", 2), goes_on = "goes on from its own checkpoints";
    EXPECT_THAT(train(options({from, "train.steps=3"}, "second")), HasSubstr("resumed at step 2 from"));
    EXPECT_THAT(train(options({from, "train.steps=4"}, "second")),
                AllOf(HasSubstr(goes_on), HasSubstr("resumed at step 3 from")));
    train(options({"train.steps=5", "checkpoint.keep_last=1"}, "second"));  // auto
    EXPECT_THAT(train(options({from + "/", "train.steps=6"}, "second")),
                AllOf(HasSubstr(goes_on), HasSubstr("resumed at step 5 from")));
    EXPECT_THAT(train(options({resume("first", 1), "train.steps=7"}, "second")), HasSubstr("checkpoint error: "));
    // A run's own checkpoint, too.
    std::string const own = resume("first", 2);
    EXPECT_THAT(train(options({own, "train.steps=3"}, "first")), HasSubstr("resumed at step 2 from"));
    EXPECT_THAT(train(options({own, "train.steps=4"}, "first")), HasSubstr("resumed at step 3 from"));
    EXPECT_THAT(train(options({resume("first", 3), "train.steps=5"}, "first")),
                AllOf(HasSubstr("goes back to step 3"), HasSubstr("go on from that one with checkpoint.resume=auto")));
}

TEST_F(Described, AnotherWayToWriteTheSameModelIsNone) {
    train(options());
    EXPECT_THAT(train(options({"model.head_dim=8"})), AllOf(Not(HasSubstr("differ")), HasSubstr("resumed at step 2")));
    auto const keys = [&](std::vector<std::string> const& before, std::vector<std::string> const& now) {
        std::vector<std::string> found;
        for (OptionChange const& c : changes(options(before), options(now))) found.push_back(c.key);
        return found;
    };
    EXPECT_THAT(keys({"attention.kind=full"}, {"attention.kind=full", "attention.block_size=32"}), IsEmpty());
    EXPECT_THAT(keys({"attention.kind=full", "attention.block_size=32"}, {}), ElementsAre("attention.kind"));
    EXPECT_THAT(keys({}, {"attention.kind=full", "attention.top_k=1"}), ElementsAre("attention.kind"));
    std::string const nearest = "attention.selection=nearest";
    EXPECT_THAT(keys({nearest}, {nearest, "attention.force_previous=true"}), IsEmpty());
    auto const rope = [&](std::string const& type, std::string const& other) {
        std::string const scaling = "model.rope_scaling.rope_type=" + type, factor = "model.rope_scaling.factor=2";
        std::vector<std::string> found;
        for (OptionChange const& c : model_changes(options({scaling, factor}), options({scaling, factor, other})))
            found.push_back(c.key);
        return found;
    };
    EXPECT_THAT(rope("linear", "model.max_position_embeddings=4096"), IsEmpty());
    EXPECT_THAT(rope("linear", "model.rope_scaling.beta_fast=9"), IsEmpty());
    EXPECT_THAT(rope("llama3", "model.rope_scaling.beta_fast=9"), IsEmpty());
    EXPECT_THAT(rope("yarn", "model.rope_scaling.beta_fast=9"), ElementsAre("model.rope_scaling.beta_fast"));
    EXPECT_THAT(rope("yarn", "model.max_position_embeddings=4096"),
                ElementsAre("model.rope_scaling.original_max_position_embeddings"));
}

TEST_F(Described, WordsThatStandForNumbersReadBack) {
    RunState state;
    state.options = options_text(options({"train.offload=auto"}));
    auto const stored = stored_options(state);
    ASSERT_TRUE(stored.has_value());
    EXPECT_THAT(to_yaml(*stored), HasSubstr("offload: auto"));
    EXPECT_THAT(train(options({"train.offload=auto"})), HasSubstr("saved step 2"));
}

TEST_F(Described, TheTokenThatEndsAnswersGoesWithTheWeights) {
    std::string const data = (folder_.path() / "chats").string();
    IndexedDatasetWriter writer(*files_, data, 257, /*with_weights=*/true);
    writer.add_document(std::vector<int32_t>(200, 1), std::vector<float>(200, 1.0f));
    writer.finish();
    auto const stop_of = [&](std::string const& run, std::vector<int32_t> const& stop) {
        write_chat_record(*files_, data, {"{{ messages }}", "tiny", "", stop});
        EXPECT_EQ(read_chat_record(*files_, data)->stop, stop);
        train(options({"data.mock_data=false", "data.train=[{path: " + data + "}]", "train.steps=1"}, run));
        auto const info = checkpoint(1, run).state().info;
        auto const found = info.find(RunState::kChatStop);
        return found == info.end() ? "none" : found->second;
    };
    EXPECT_EQ(stop_of("one", {5}), "5");
    EXPECT_EQ(stop_of("two", {5, 6}), "none") << "eos_token_id lists tokens, none of them a sequence";
    EXPECT_EQ(stop_of("unsaid", {}), "none");
    for (char const* const bad : {"[-1]", "5", R"({"a": 5})", "[2147483648]", "[\"5\"]"}) {
        files_->replace_text(data + ".chat.json", fmt::format(R"({{"template": "", "stop": {}}})", bad));
        EXPECT_EQ(testing::error_of(Category::data, [&] { read_chat_record(*files_, data); }),
                  data + ".chat.json: \"stop\" must be a list of tokens");
    }
}

TEST_F(Described, TheModelOfACheckpointIsTakenWithTheLengthThatItsFrequenciesAreStretchedFrom) {
    RunOptions stored, file;
    stored.model.rope_scaling = {.type = RopeType::yarn, .factor = 4};
    stored.model.max_position_embeddings = 64;
    file.model.max_position_embeddings = 1024;
    take_model(file, stored);
    EXPECT_THAT(model_changes(stored, file), IsEmpty());
}

TEST_F(Described, ARunThatBeginsWithACheckpointsWeightsHasItsModelByDefault) {
    train(options({"model.rope_theta=500000"}));
    std::string const from = (checkpoint_root(folder_.path() / "run") / step_name(2)).string();
    std::string const yaml = "{model: {init_from: " + from + "}, attention: {top_k: 3}}";
    RunOptions const o = parse_config(yaml, "yaml", {});
    EXPECT_EQ(o.model.rope_theta, 500000);
    EXPECT_EQ(o.model.hidden_size, 32);
    EXPECT_EQ(o.attention.moba.block_size, 16);
    EXPECT_EQ(o.attention.moba.top_k, 3);
    EXPECT_THAT(train(options({"model.init_from=" + from, "model.rope_theta=10000"}, "next")),
                HasSubstr("whose value comes first:\n  model.rope_theta: 500000.0 -> 10000.0"));
}

TEST_F(Described, ARunThatBeginsWithACheckpointsWeightsHasTheAttentionOfItsStep) {
    train(options({"attention.schedule=[{step: 1, kind: full}, {step: 100, kind: moba}]"}));
    std::string const from = (checkpoint_root(folder_.path() / "run") / step_name(2)).string();
    RunOptions const o = parse_config("{model: {init_from: " + from + "}}", "yaml", {});
    EXPECT_EQ(o.attention.kind, AttentionKind::full);
    EXPECT_TRUE(o.attention.schedule.empty());
    EXPECT_EQ(o.attention.moba.block_size, 16);
}

TEST_F(Described, OtherDifferencesAreListedInOneBlockAndTrainingGoesOn) {
    train(options());
    std::string const said =
        train(options({"train.steps=4", "optimizer.lr=1e-5", "optimizer.weight_decay=0.2", "train.global_batch_size=4",
                       "seed=7", "schedule.decay=linear", "data.mock.task=far_recall"}));
    EXPECT_THAT(said,
                AllOf(HasSubstr("  optimizer.lr: 0.0003 -> 1e-05\n"), HasSubstr("  optimizer.weight_decay: 0.1 -> 0.2"),
                      HasSubstr("  train.global_batch_size: 2 -> 4"), HasSubstr("  seed: 1234 -> 7"),
                      HasSubstr("  schedule.decay: \"cosine\" -> \"linear\""),
                      HasSubstr("  data.mock.task: \"phrases\" -> \"far_recall\""), HasSubstr("finished at step 4")));
    EXPECT_EQ(said.find("options or data differ"), said.rfind("options or data differ"));
}

TEST_F(Described, ALongerRunThatRaisesTheLearningRateSaysBothFigures) {
    train(options());
    EXPECT_THAT(train(options({"train.steps=8"})),
                AllOf(HasSubstr("the learning rate rises again: 0.00026"), HasSubstr("train.steps 2, have 3e-05")));
    EXPECT_THAT(train(options({"train.steps=8", "optimizer.lr=1e-6"})), Not(HasSubstr("rises again")));
    EXPECT_THAT(train(options({"train.steps=8", "optimizer.lr=3.001e-4"})), Not(HasSubstr("rises again")))
        << "by nothing that the figures show";
}

TEST_F(Described, EpochsThatOtherBatchesBeforeMadeShorterOrLongerAreTold) {
    train(options());
    std::string const epochs = "train.epochs=1.1444091796875e-05";  // 12 of 2^20 samples
    EXPECT_THAT(train(with_steps_of_epochs(options({epochs, "train.global_batch_size=4"}), *files_)),
                AllOf(HasSubstr("are 3 steps of 4 samples, but the 2 steps before took 4: the run ends after "
                                "7.629e-06 epochs. For 1.1444091796875e-05, give train.epochs=0 train.steps=4"),
                      HasSubstr("finished at step 3")));
    train(options({}, "same"));
    EXPECT_THAT(train(with_steps_of_epochs(options({epochs}, "same"), *files_)),
                AllOf(Not(HasSubstr("train.epochs (")), HasSubstr("finished at step 6")));
}

TEST(StepsOfEpochs, RoundUpButNotForRounding) {
    EXPECT_EQ(steps_of_epochs(1, 100, 10), 10);
    EXPECT_EQ(steps_of_epochs(1, 101, 10), 11);
    EXPECT_EQ(steps_of_epochs(1.1, 100, 10), 11);
    EXPECT_EQ(steps_of_epochs(2.2, 25, 1), 55);
    EXPECT_EQ(steps_of_epochs(1.001, 1000000, 1), 1001000);
    EXPECT_EQ(steps_of_epochs(1.0000001, 100, 1), 101);
}

TEST_F(Described, ARunWithoutAStepLeftIsTold) {
    train(options());
    std::string const none = "no step is left: the checkpoint is of step 2, and train.steps ";
    EXPECT_THAT(train(options({"train.steps=1"})), HasSubstr(none + "(1) counts those before it too"));
    std::string const epochs = "train.epochs=1.9073486328125e-06";  // 2 of 2^20 samples: one step
    EXPECT_THAT(train(with_steps_of_epochs(options({epochs}), *files_)),
                AllOf(HasSubstr(none + "(1)"), Not(HasSubstr("give train.epochs=0"))));
    EXPECT_THAT(train(options()), AllOf(Not(HasSubstr("no step is left")), HasSubstr("finished at step 2")));
    std::string const from = (checkpoint_root(folder_.path() / "run") / step_name(2)).string();
    EXPECT_THAT(train(options({"checkpoint.resume=" + from}, "next")), HasSubstr(none + "(2)"));
}

TEST_F(Described, RanksWithOtherOptionsAreRefusedOnEveryRank) {
    auto const messages = [&](std::vector<std::string> const& of_the_second) {
        std::vector<std::string> found;
        for (auto const& error : testing::try_ranks(3, [&](HostComm& world) {
                 check_alike(options(world.rank() == 1 ? of_the_second : std::vector<std::string>{}), world);
             })) {
            try {
                if (error) std::rethrow_exception(error);
                found.emplace_back("");
            } catch (Error const& e) {
                EXPECT_EQ(e.category(), Category::config);
                found.emplace_back(e.what());
            }
        }
        return found;
    };
    EXPECT_THAT(messages({"threads=3", "model.head_dim=8"}), ElementsAre("", "", "")) << "the same model and run";
    EXPECT_THAT(messages({"seed=7", "parallel.tensor=2"}),
                ::testing::Each("rank 1 has other options than rank 0, whose value comes first:\n  seed: 1234 -> 7\n  "
                                "parallel.tensor: 1 -> 2"));
}

/// Every rank of three does this with files of its own, where rank 2 has other ones unless `alike`; the common error.
std::string error_of_ranks(bool alike, Category category,
                           std::function<void(HostComm&, FileSystem&, bool other)> const& act) {
    std::string found;
    for (auto const& error : testing::try_ranks(3, [&](HostComm& world) {
             testing::MemoryFileSystem files;
             act(world, files, !alike && world.rank() == 2);
         })) {
        EXPECT_EQ(error == nullptr, alike);
        if (!error) continue;
        try {
            std::rethrow_exception(error);
        } catch (Error const& e) {
            EXPECT_EQ(e.category(), category);
            found = e.what();
        }
    }
    return found;
}

TEST_F(Described, RanksThatReadOtherDataAreNamed) {
    RunOptions o =
        options({"data.mock_data=false", "data.train=[{path: a}, {path: b}]", "data.validation=[{path: a}]"});
    auto const open = [&](bool alike, bool training) {
        return error_of_ranks(alike, Category::data, [&](HostComm& world, FileSystem& files, bool other) {
            for (std::string const name : {"a", "b"}) {
                files.replace_text(name + ".idx", other && name == "b" ? "xyz" : "xy");
                files.replace_text(name + ".bin", "same");
            }
            auto const found = Session(o, world, files).data_fingerprints(training);
            EXPECT_EQ(found.size(), training ? 3u : 1u);
        });
    };
    EXPECT_EQ(open(true, true), "");
    EXPECT_THAT(open(false, true),
                HasSubstr("data.train.1.path holds other files for rank 2 than for rank 0 (7 bytes"));
}

TEST_F(Described, AnEvaluationComparesOnlyTheDataThatItReads) {
    RunOptions o = options({"data.mock_data=false", "data.train=[{path: b}]", "data.validation=[{path: a}]"});
    testing::run_ranks(2, [&](HostComm& world) {
        testing::MemoryFileSystem files;
        files.replace_text("a.idx", "xy");
        if (world.rank() == 0) files.replace_text("b.idx", "xy");
        EXPECT_THAT(Session(o, world, files).data_fingerprints(false), ElementsAre(::testing::Key("validation.0")));
    });
}

TEST_F(Described, RanksThatReadOtherWeightsAreNamed) {
    auto const begin = [&](bool alike) {
        return error_of_ranks(alike, Category::config, [&](HostComm& world, FileSystem& files, bool other) {
            testing::write_folder(files, "folder", testing::small_config("llama", true), ElementType::bf16, 1,
                                  other ? 2 : 1);
            RunOptions o = options();
            o.model = read_hf_config(files, "folder").model;
            o.model.init_from = "folder";
            Session session(o, world, files);
            Learner(session).initialise(1);
        });
    };
    EXPECT_EQ(begin(true), "");
    EXPECT_THAT(begin(false), HasSubstr("folder holds other weights for rank 2 than for rank 0 ("));
}

TEST_F(Described, RanksThatReadAnotherCheckpointAreNamed) {
    train(options());
    Path const folder = checkpoint_root(folder_.path() / "run") / step_name(2);
    std::string const manifest = files_->read_text(folder / kManifestName, kMaxManifestBytes);
    std::string const found =
        error_of_ranks(false, Category::checkpoint, [&](HostComm& world, FileSystem& files, bool other) {
            files.make_directories("step");
            files.replace_text(Path("step") / kManifestName, manifest + (other ? " " : ""));
            Checkpoint::open(files, world, "step");
        });
    EXPECT_THAT(found, AllOf(HasSubstr("rank 2: "), HasSubstr("is not the file that rank 0 sees")));
}

TEST_F(Described, ACheckpointOfAnotherRunIsSetAsideOrWhereItIsNamedSaid) {
    train(options());
    train(options({"seed=5", "train.steps=3"}, "other"));
    Path const foreign = checkpoint_root(folder_.path() / "other") / step_name(3);
    Path const root = checkpoint_root(folder_.path() / "run");
    std::filesystem::copy(foreign, root / step_name(3), std::filesystem::copy_options::recursive);
    EXPECT_THAT(
        train(options({"train.steps=4"})),
        AllOf(HasSubstr("is of another run"), HasSubstr("step_00000003.damaged"), HasSubstr("resumed at step 2")));
    EXPECT_THAT(train(options({"train.steps=5", "checkpoint.resume=" + foreign.string()}, "third")),
                AllOf(HasSubstr("the checkpoint is of another run"), HasSubstr("resumed at step 3")));
    EXPECT_NE(checkpoint(5, "third").state().run_id, checkpoint(3, "other").state().run_id);
}

TEST_F(Described, AnOlderCheckpointLoadsWithOneLineThatSaysWhatCannotBeChecked) {
    RunOptions const o = options();
    testing::run_ranks(1, [&](HostComm& world) {
        Session session(o, world, *files_);
        Learner learner(session);
        learner.initialise(1);
        RunState state;
        state.step = 1;
        save_checkpoint(*files_, world, checkpoint_root(o.output_dir), state, learner.tensors(learner.owned()), {});
    });
    std::string const said = train(options({"model.rope_theta=500000"}));
    EXPECT_THAT(said, AllOf(HasSubstr("does not say which options and data"), HasSubstr("resumed at step 1"),
                            HasSubstr("finished at step 2")));
}

TEST_F(Described, TokensOfEqualLengthAndOtherContentsAreNoticed) {
    auto const write = [&](int32_t last) {
        IndexedDatasetWriter writer(*files_, folder_.path() / "tokens", 256);
        for (int d = 0; d < 20; ++d) {
            std::vector<int32_t> tokens(100, d);
            if (d == 19) tokens.back() = last;
            writer.add_document(tokens);
        }
        writer.finish();
    };
    std::string const path = (folder_.path() / "tokens").string();
    std::vector<std::string> overrides = {"data.mock_data=false", "data.train.0.path=" + path};
    write(7);
    auto const before = fingerprints(options(overrides).data, *files_);
    EXPECT_EQ(before, fingerprints(options(overrides).data, *files_));
    train(options(overrides));
    overrides.push_back("train.steps=3");
    EXPECT_THAT(train(options(overrides)), Not(HasSubstr("contents of")));
    std::filesystem::create_directory(folder_.path() / "moved");
    for (char const* const name : {"tokens.bin", "tokens.idx"})
        std::filesystem::copy(folder_.path() / name, folder_.path() / "moved" / name);
    std::string const moved = (folder_.path() / "moved" / "tokens").string();
    EXPECT_THAT(train(options({overrides.front(), "data.train.0.path=" + moved, "train.steps=4"})),
                AllOf(HasSubstr("data.train: "), Not(HasSubstr("bit for bit"))));
    write(8);
    EXPECT_NE(before, fingerprints(options(overrides).data, *files_));
    overrides.back() = "train.steps=5";
    EXPECT_THAT(train(options(overrides)),
                AllOf(HasSubstr("  contents of data.train.0: " + before.at("train.0") + " -> "),
                      HasSubstr("finished at step 5")));
}

}  // namespace
}  // namespace perigee
