// model.init_from: a run that starts from the weights of a Hugging Face folder or a checkpoint, under any layout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/manifest.h"
#include "config/config.h"
#include "hf/convert.h"
#include "hf/hf_folder.h"
#include "support/temporary_folder.h"
#include "support/thread_comm.h"
#include "train/run_folder.h"
#include "train/trainer.h"

namespace perigee {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace testing;

class InitFromTest : public ::testing::Test {
  protected:
    InitFromTest() { write_folder(*files_, hf_, small_config("qwen3", true), ElementType::bf16, 2); }

    RunOptions options(std::string const& name, std::vector<std::string> overrides = {}) {
        overrides.insert(overrides.begin(),
                         {"model.init_from=" + hf_.string(), "output_dir=" + (folder_.path() / name).string()});
        return resolve(parse_config(R"(
attention: {kind: moba, block_size: 16, top_k: 2}
data: {mock_data: true, sequence_length: 64}
train: {steps: 2, global_batch_size: 4, micro_batch_size: 1}
threads: 1
log: {progress: false}
)",
                                    "yaml", overrides),
                       1, *files_);
    }
    /// A run under a layout that does no step; where its checkpoint of step 0 is.
    Path save_at_start(std::string const& name, int dp, int cp, int tp) {
        RunOptions const o =
            options(name, {fmt::format("parallel.tensor={}", tp), fmt::format("parallel.context={}", cp)});
        EXPECT_THAT(problems(o, dp * cp * tp), ::testing::IsEmpty());
        run_ranks(dp * cp * tp, [&](HostComm& world) {
            auto const files = make_file_system();
            Trainer trainer(o, world, *files, to_yaml(o));
            trainer.save(/*last=*/true);
        });
        return checkpoint_root(o.output_dir) / "step_00000000";
    }
    std::string error(RunOptions const& o) {
        return error_of(Category::checkpoint, [&] { Session(o, *alone_, *files_).load_weights(); });
    }
    /// What the log says.
    template <class Action>
    static std::string said(Action&& action) {
        ::testing::internal::CaptureStderr();
        action();
        return ::testing::internal::GetCapturedStderr();
    }

    std::unique_ptr<FileSystem> files_ = make_file_system();
    TemporaryFolder folder_;
    Path hf_ = folder_.path() / "hf";
    std::unique_ptr<HostComm> alone_ = make_single_host_comm();
};

TEST_F(InitFromTest, the_folder_says_which_model_it_is_and_the_yaml_has_the_last_word) {
    RunOptions const o =
        options("run", {"model.max_position_embeddings=128", "model.rope_scaling={rope_type: linear, factor: 2}"});
    EXPECT_EQ(o.model.hidden_size, 12);
    EXPECT_EQ(o.model.vocab_size, 24);
    EXPECT_TRUE(o.model.qk_norm && o.model.tie_word_embeddings);
    EXPECT_EQ(o.model.max_position_embeddings, 128);
    EXPECT_EQ(o.model.rope_scaling.factor, 2);
    EXPECT_EQ(o.attention.moba.block_size, 16);
    write_text(*files_, hf_ / "tokenizer.json", "{}");
    std::string const yaml = "model: {init_from: " + hf_.string() + "}";
    EXPECT_EQ(parse_config(yaml, "yaml", {}).data.tokenizer, hf_.string());
    EXPECT_EQ(parse_config(yaml, "yaml", {"data.tokenizer=bytes"}).data.tokenizer, "bytes");
    // What the run saves with itself means the same model.
    EXPECT_EQ(to_yaml(parse_config(to_yaml(o), "saved", {})), to_yaml(o));
}

TEST_F(InitFromTest, settings_of_attention_in_the_folder_are_defaults) {
    AttentionOptions attention;
    attention.moba = {.block_size = 32, .top_k = 7};
    attention.full_layers.last = 1;
    HfConfig const config = read_hf_config(*files_, hf_);
    write_text(*files_, hf_ / kConfigName, write_hf_config(config.model, attention, ElementType::bf16, config.text));
    RunOptions const o = options("run");
    EXPECT_EQ(o.attention.moba.block_size, 16);
    EXPECT_EQ(o.attention.moba.top_k, 2);
    EXPECT_EQ(o.attention.full_layers.last, 1);
}

TEST_F(InitFromTest, through_a_checkpoint_of_any_layout_every_folder_comes_back_bit_for_bit) {
    for (std::string const type : {"llama", "mistral", "qwen2", "qwen3"}) {
        for (auto const& [tied, dp, cp, tp] :
             {std::tuple{true, 1, 1, 1}, {true, 2, 2, 2}, {false, 1, 1, 2}, {false, 2, 2, 2}}) {
            std::string const name = fmt::format("{}-{}-{}-{}-{}", type, tied, dp, cp, tp);
            SCOPED_TRACE(name);
            hf_ = folder_.path() / ("hf-" + name);
            write_folder(*files_, hf_, small_config(type, tied), ElementType::bf16, dp == 2 ? 3 : 1);
            auto const before = stored_tensors(*files_, hf_);
            ASSERT_GE(before.size(), 20u);
            Checkpoint const checkpoint = Checkpoint::open(*files_, save_at_start(name, dp, cp, tp));
            ExportOptions to;
            to.model = options(name).model;
            to.type = ElementType::bf16;
            to.origin = hf_;
            Path const out = folder_.path() / ("out-" + name);
            export_folder(*files_, checkpoint, to, out, [](int64_t, int64_t) {});
            EXPECT_EQ(stored_tensors(*files_, out), before);
        }
    }
}

TEST_F(InitFromTest, a_run_starts_from_another_runs_checkpoint_and_resumes_from_its_own) {
    Path const checkpoint = save_at_start("first", 1, 1, 1);
    auto const weights_of = [](Session const& session) {
        return std::vector<float>(session.weights().flat().as<float>(),
                                  session.weights().flat().as<float>() + session.layout().size());
    };
    Session from_folder(options("unused"), *alone_, *files_);
    from_folder.load_weights();
    RunOptions const o =
        options("second", {"model.init_from=" + checkpoint.string(), "model.hidden_size=12",
                           "model.intermediate_size=20", "model.num_hidden_layers=2", "model.num_attention_heads=4",
                           "model.num_key_value_heads=2", "model.head_dim=6", "model.vocab_size=24",
                           "model.qk_norm=true", "model.tie_word_embeddings=true", "model.max_position_embeddings=64"});
    std::vector<float> trained;
    {
        Trainer trainer(o, *alone_, *files_, "");
        EXPECT_EQ(weights_of(trainer.session()), weights_of(from_folder));
        EXPECT_EQ(trainer.state().step, 0);
        trainer.step();
        trainer.save(true);
        trained = weights_of(trainer.session());
    }
    EXPECT_NE(trained, weights_of(from_folder));
    Trainer resumed(o, *alone_, *files_, "");
    EXPECT_EQ(resumed.state().step, 1);
    EXPECT_EQ(weights_of(resumed.session()), trained);
}

TEST_F(InitFromTest, a_convolution_of_keys_starts_at_zero_and_is_trained_and_resumed) {
    auto const convolution_of = [](Session const& session) {
        ParamLayout::Entry const& entry = session.layout().entry("model.layers.1.self_attn.k_conv.weight");
        auto const* const first = session.weights().flat().as<float>() + entry.offset;
        return std::vector<float>(first, first + entry.local.size());
    };
    Path const plain = save_at_start("plain", 1, 1, 1);
    std::vector<std::string> shape = {
        "model.hidden_size=12",        "model.intermediate_size=20",  "model.num_hidden_layers=2",
        "model.num_attention_heads=4", "model.num_key_value_heads=2", "model.head_dim=6",
        "model.vocab_size=24",         "model.qk_norm=true",          "model.tie_word_embeddings=true",
        "attention.key_conv=3"};
    for (std::string const& from : {hf_.string(), plain.string()}) {
        SCOPED_TRACE(from);
        auto overrides = shape;
        overrides.push_back("model.init_from=" + from);
        RunOptions const o = options(from == hf_ ? "from_hf" : "from_checkpoint", overrides);
        std::vector<float> trained;
        {
            Trainer trainer(o, *alone_, *files_, "");
            EXPECT_EQ(convolution_of(trainer.session()), std::vector<float>(36));
            trainer.step();
            trainer.save(true);
            trained = convolution_of(trainer.session());
            for (float const w : trained) EXPECT_NE(w, 0);
        }
        Trainer resumed(o, *alone_, *files_, "");
        EXPECT_EQ(convolution_of(resumed.session()), trained);
    }
}

TEST_F(InitFromTest, a_folder_that_is_not_read_beside_the_runs_own_weights_is_told) {
    Path const own = save_at_start("run", 1, 1, 1), other = folder_.path() / "other";
    write_folder(*files_, other, small_config("qwen3", true), ElementType::bf16, 1);
    auto const find = [&](std::vector<std::string> const& overrides) {
        return said([&] { find_weights(options("run", overrides), *alone_, *files_); });
    };
    EXPECT_THAT(find({}), IsEmpty());
    EXPECT_THAT(find({"model.init_from=" + (hf_ / ".").string(), "checkpoint.resume=never"}), IsEmpty());
    std::string const elsewhere = "model.init_from=" + other.string();
    EXPECT_THAT(find({elsewhere}), HasSubstr(elsewhere + " is not read: the weights are those of " + own.string()));
    EXPECT_THAT(find({elsewhere, "checkpoint.resume=" + own.string()}), IsEmpty());
    EXPECT_THAT(error_of(Category::config,
                         [&] {
                             find({elsewhere, "checkpoint.resume=never"});
                         }),
                HasSubstr(elsewhere + " is not read, though checkpoint.resume is `never`"));
    ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(said([&] {
                    RunOptions o = options("run", {elsewhere});
                    o.train.steps = 1;
                    Trainer(o, *alone_, *files_, "");
                }),
                HasSubstr(elsewhere + " is not read: the weights are those of " + own.string()));
}

TEST_F(InitFromTest, a_checkpoint_that_a_save_was_replacing_is_the_runs_own) {
    Path const own = save_at_start("run", 1, 1, 1);
    std::filesystem::copy(own, own.string() + ".old", std::filesystem::copy_options::recursive);
    files_->remove_all(own / kManifestName);
    EXPECT_THAT(said([&] { find_weights(options("run", {}), *alone_, *files_); }),
                ::testing::Not(HasSubstr("checkpoint.resume names")));
}

TEST_F(InitFromTest, a_tokenizer_in_the_folder_that_the_data_do_not_have_is_told) {
    auto const load = [&](std::vector<std::string> overrides) {
        overrides.push_back("data.tokenizer=bytes");
        return said([&] { Session(options("run", overrides), *alone_, *files_).load_weights(); });
    };
    EXPECT_THAT(load({"data.mock_data=false"}), ::testing::Not(HasSubstr("data.tokenizer")));
    write_text(*files_, hf_ / "tokenizer.json", "{}");
    EXPECT_THAT(load({"data.mock_data=false"}), HasSubstr("tokenize the data with " + hf_.string()));
    EXPECT_THAT(load({}), ::testing::Not(HasSubstr("data.tokenizer")));  // made-up data have none
}

TEST_F(InitFromTest, what_does_not_fit_is_named) {
    EXPECT_EQ(error(options("run", {"model.intermediate_size=24"})),
              (hf_ / "part-1.safetensors").string() +
                  ": tensor `model.layers.0.mlp.gate_proj.weight` is [20, 12]; the model's options make it [24, 12]");
    EXPECT_EQ(error_of(Category::config, [&] { options("run", {"model.init_from=/nowhere/at/all"}); }),
              "model.init_from: there is no folder /nowhere/at/all");
    std::string const whole = save_at_start("whole", 1, 1, 1).string();
    EXPECT_THAT(error(options("fewer", {"model.init_from=" + whole, "model.num_hidden_layers=1"})),
                HasSubstr("tensor `model.layers.1.input_layernorm.weight` has no place in the model"));
    Path const silent = folder_.path() / "silent";
    files_->make_directories(silent);
    write_text(*files_, silent / "tokenizer.json", "{}");
    EXPECT_EQ(error_of(Category::config, [&] { options("run", {"model.init_from=" + silent.string()}); }),
              "model.init_from: " + silent.string() + " has neither config.json nor a checkpoint's manifest");
    files_->remove_all(hf_ / "part-1.safetensors");
    EXPECT_THAT(error(options("run")), HasSubstr("part-1.safetensors: No such file or directory"));
    // One rank's trouble is everybody's, and nobody hangs.
    RunOptions const o = options("run", {"parallel.tensor=2"});
    auto const errors = try_ranks(2, [&](HostComm& world) {
        auto const files = make_file_system();
        Session(o, world, *files).load_weights();
    });
    for (auto const& thrown : errors) {
        ASSERT_TRUE(thrown != nullptr);
        EXPECT_THAT(error_of(Category::checkpoint, [&] { std::rethrow_exception(thrown); }),
                    HasSubstr("rank 0: cannot open"));
    }
}

}  // namespace
}  // namespace perigee
