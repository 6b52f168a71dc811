// Runs that train adapters or a part of the parameters: what changes, what is stored, and how they resume.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config.h"
#include "data/data_source.h"
#include "hf/convert.h"
#include "hf/hf_folder.h"
#include "hf/peft.h"
#include "support/thread_comm.h"
#include "train/evaluate.h"
#include "train/run_folder.h"
#include "train/trainer.h"

namespace perigee {
namespace {

using ::testing::HasSubstr;
using namespace testing;

class LoraRun : public ::testing::Test {
  protected:
    LoraRun() { write_folder(files_, "/hf", config_, ElementType::f32, 2); }

    RunOptions options(std::vector<std::string> const& more = {}, int ranks = 1) const {
        RunOptions options = parse_config(R"(
output_dir: /run
model: {vocab_size: 24, hidden_size: 12, intermediate_size: 20, num_hidden_layers: 2, num_attention_heads: 4,
        num_key_value_heads: 2, head_dim: 6, max_position_embeddings: 64, rms_norm_eps: 1e-06, rope_theta: 500,
        tie_word_embeddings: true, qk_norm: true}
attention: {kind: moba, block_size: 16, top_k: 2, full_layers: {last: 1}}
lora: {rank: 4, alpha: 8, dropout: 0.25}
data: {mock_data: true, sequence_length: 64}
train: {steps: 4, global_batch_size: 4}
optimizer: {lr: 0.01}
eval: {samples: 4}
checkpoint: {every: 2, async: false}
device: cpu
threads: 1
log: {progress: false}
)",
                                          "yaml", more);
        options.model.init_from = init_from_;  // parse_config() would look for it on disk
        options.model.lora.init_from = adapters_;
        options = resolve(options, 1, files_);
        EXPECT_THAT(problems(options, ranks), ::testing::IsEmpty());
        return options;
    }
    std::vector<double> train(RunOptions const& o, int64_t steps) {
        Trainer trainer(o, *alone_, files_, "");
        std::vector<double> losses;
        while (std::ssize(losses) < steps) losses.push_back(trainer.step().loss);
        trainer.save(/*last=*/true);
        return losses;
    }
    double loss_of(RunOptions const& o, bool of_checkpoint = true) {
        Session session(o, *alone_, files_);
        if (of_checkpoint)
            session.load_weights();
        else
            session.load_weights(std::nullopt);
        auto const data = session.open(Split::validation);
        return evaluate(session, *data, 0, session.selections(0))->loss;
    }
    Checkpoint checkpoint(int64_t step) const {
        return Checkpoint::open(files_, fmt::format("/run/checkpoints/step_{:08}", step));
    }
    ExportOptions to(RunOptions const& o) const {
        ExportOptions to;
        to.model = o.model, to.attention = o.attention, to.base = o.model.init_from;
        return to;
    }
    static std::vector<float> copy(ConstView x) { return {x.as<float>(), x.as<float>() + x.size()}; }

    std::string const config_ = small_config("qwen3", true);
    mutable MemoryFileSystem files_;
    std::string init_from_ = "/hf", adapters_;
    std::unique_ptr<HostComm> alone_ = make_single_host_comm();
};

TEST_F(LoraRun, TrainsAdaptersAndNothingElse) {
    RunOptions const o = options();
    Trainer trainer(o, *alone_, files_, "");
    Session& session = trainer.session();
    auto const frozen = [&] { return copy(session.model_weights().frozen_part()->flat()); };
    auto const trained = [&] { return copy(session.weights().flat()); };
    auto const frozen_before = frozen(), trained_before = trained();
    EXPECT_EQ(std::ssize(frozen_before), session.frozen_layout()->size());
    for (ParamLayout::Entry const& e : session.frozen_layout()->entries())
        if (e.spec.shape.rank() == 2) {
            EXPECT_EQ(frozen_before[static_cast<size_t>(e.offset)],
                      exact_values(e.spec.shape.size(), 1 + hash_name(e.spec.name))[0])
                << e.spec.name;
        }
    for (int step = 0; step < 3; ++step) trainer.step();
    EXPECT_EQ(frozen(), frozen_before);
    auto const trained_after = trained();
    for (ParamLayout::Entry const& e : session.layout().entries()) {
        EXPECT_TRUE(is_adapter(e.spec.name)) << e.spec.name;
        auto const begin = static_cast<size_t>(e.offset), end = begin + static_cast<size_t>(e.local.size());
        bool changed = false;
        for (size_t i = begin; i < end; ++i) changed = changed || trained_after[i] != trained_before[i];
        EXPECT_TRUE(changed) << e.spec.name;
    }
}

TEST_F(LoraRun, APartOfAModelIsNoneToBeginFrom) {
    std::vector<std::string> const lora, frozen = {"lora.rank=0", "train.freeze=[model.embed_tokens.*]"};
    for (auto const& [part, what, option] :
         {std::tuple{lora, "adapters", " --merge`"}, {frozen, "trained parameters", " FOLDER`"}}) {
        SCOPED_TRACE(what);
        files_.remove_all("/run");
        init_from_ = "/hf";
        train(options(part), 1);
        init_from_ = "/run/checkpoints/step_00000001";
        std::string const error = error_of(Category::checkpoint, [&] {
            Session(options({"output_dir=/next", "lora.rank=0"}), *alone_, files_).load_weights(std::nullopt);
        });
        EXPECT_THAT(error, HasSubstr(fmt::format("it holds {} alone", what)));
        EXPECT_THAT(error, HasSubstr("`perigee convert " + init_from_ + " FOLDER"));
        EXPECT_THAT(error, HasSubstr(option));
    }
}

TEST_F(LoraRun, EvalTellsOfAdaptersThatAreNotRead) {
    train(options(), 1);
    auto const told = [&](char const* base, char const* adapters) {
        init_from_ = base, adapters_ = adapters;
        ::testing::internal::CaptureStderr();
        find_weights(options(), *alone_, files_);
        return ::testing::internal::GetCapturedStderr();
    };
    EXPECT_THAT(told("/hf", ""), ::testing::Not(HasSubstr("is not read")));
    EXPECT_THAT(told("/other", ""), ::testing::Not(HasSubstr("is not read"))) << "it is, and its fingerprint compared";
    EXPECT_THAT(told("/hf", "/adapters"), HasSubstr("lora.init_from=/adapters is not read"));
}

TEST_F(LoraRun, StoresAdaptersAloneAndGoesOnBitForBit) {
    RunOptions const o = options();
    auto const whole = train(o, 4);
    std::vector<std::string> names;
    Checkpoint const stored = checkpoint(4);
    for (auto const& [name, shape] : stored.tensors()) names.push_back(name);
    EXPECT_THAT(names, ::testing::Each(::testing::EndsWith("weight")));
    EXPECT_EQ(names.size(), 3u * 2 * 2 * 7) << "A and B, each with two moments, of seven layers in two blocks";
    for (std::string const& name : names) EXPECT_TRUE(is_adapter(name)) << name;
    EXPECT_EQ(stored.state().info.at(RunState::kBase).size(), 16u);

    files_.remove_all("/run/checkpoints");
    auto first = train(o, 2);
    auto const rest = train(o, 2);
    first.insert(first.end(), rest.begin(), rest.end());
    EXPECT_EQ(first, whole);
}

TEST_F(LoraRun, RefusesAnotherBase) {
    RunOptions const o = options();
    train(o, 2);
    write_folder(files_, "/other", config_, ElementType::f32, 1, /*seed=*/2);
    init_from_ = "/other";
    auto const error = error_of(Category::checkpoint, [&] { train(options(), 1); });
    EXPECT_THAT(error, HasSubstr("step_00000002 was trained beside other frozen weights: "));
    EXPECT_THAT(error, HasSubstr("from /other. Name the model it began with in model.init_from"));
    EXPECT_THAT(error_of(Category::checkpoint, [&] { loss_of(options()); }), HasSubstr("other frozen weights"));
    EXPECT_THAT(
        error_of(Category::config, [&] { train(options({"lora.rank=0"}), 1); }),
        AllOf(HasSubstr("  lora.rank: 4 -> 0"), HasSubstr("Which weights are trained cannot change within a run"),
              Not(HasSubstr("model.init_from"))));
    files_.remove_all("/run/checkpoints");
    train(options({"lora.rank=0"}), 2);
    EXPECT_THAT(error_of(Category::config, [&] { train(o, 1); }),
                HasSubstr("start a new one with model.init_from=/run/checkpoints/step_00000002"));
}

TEST_F(LoraRun, KnowsItsBaseUnderEveryLayout) {
    std::string const one = [&] {
        Session session(options(), *alone_, files_);
        session.load_frozen();
        return session.base();
    }();
    for (auto const& [dp, cp, tp, shard] :
         {std::tuple{2, 1, 1, "none"}, {2, 1, 2, "weights"}, {1, 2, 2, "gradients"}}) {
        RunOptions const o = options({fmt::format("parallel.tensor={}", tp), fmt::format("parallel.context={}", cp),
                                      fmt::format("parallel.shard={}", shard), "train.micro_batch_size=1"},
                                     dp * cp * tp);
        run_ranks(dp * cp * tp, [&](HostComm& world) {
            Session session(o, world, files_);
            session.load_frozen();
            EXPECT_EQ(session.base(), one);
        });
    }
    init_from_ = "";
    Session session(options(), *alone_, files_);
    session.load_frozen();
    EXPECT_NE(session.base(), one);
}

TEST_F(LoraRun, BecomesAFolderOfPeftAndComesBack) {
    RunOptions const o = options();
    train(o, 4);
    double const loss = loss_of(o);
    export_adapters(files_, checkpoint(4), to(o), "/adapters");
    auto const tensors = stored_tensors(files_, "/adapters");
    EXPECT_EQ(tensors.size(), 28u);
    EXPECT_TRUE(tensors.contains("base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"));
    adapters_ = "/adapters";
    EXPECT_EQ(loss_of(options({"output_dir=/elsewhere"}), /*of_checkpoint=*/false), loss);
    EXPECT_THAT(error_of(Category::config, [&] { loss_of(options({"lora.alpha=9"}), false); }),
                HasSubstr("the adapters in /adapters are of alpha 8, and lora.alpha is 9"));
    EXPECT_THAT(error_of(Category::config, [&] { loss_of(options({"lora.targets=[q_proj]"}), false); }),
                HasSubstr("are of targets ["));
}

TEST_F(LoraRun, LeavesTheConvolutionOfKeysAsTheBaseHasIt) {
    RunOptions const conv = options({"lora.rank=0", "attention.key_conv=3", "output_dir=/conv"});
    train(conv, 2);
    init_from_ = "/conv/checkpoints/step_00000002";
    RunOptions const o = options({"attention.key_conv=3"});
    Trainer trainer(o, *alone_, files_, "");
    Session& session = trainer.session();
    auto const convolution = [&] {
        ParamLayout::Entry const& e = session.frozen_layout()->entry("model.layers.1.self_attn.k_conv.weight");
        return copy(session.model_weights().frozen_part()->flat().rows(e.offset, e.offset + e.local.size()));
    };
    auto const before = convolution();
    EXPECT_THAT(before, ::testing::Contains(::testing::Ne(0)));
    for (int step = 0; step < 2; ++step) trainer.step();
    EXPECT_EQ(convolution(), before);
    trainer.save(/*last=*/true);
    Checkpoint const stored = checkpoint(2);
    for (auto const& [name, shape] : stored.tensors()) EXPECT_TRUE(is_adapter(name)) << name;
    EXPECT_EQ(error_of(Category::config, [&] { export_adapters(files_, checkpoint(2), to(o), "/adapters"); }),
              "no architecture of Hugging Face has attention.key_conv (3): adapters of such a model cannot be "
              "exported");
}

TEST_F(LoraRun, IsAddedToTheWeightsOfItsBaseOnRequest) {
    RunOptions const o = options();
    train(o, 4);
    double const loss = loss_of(o);
    export_folder(files_, checkpoint(4), to(o), "/merged", [](int64_t, int64_t) {});
    init_from_ = "/merged";
    EXPECT_NEAR(loss_of(options({"output_dir=/elsewhere", "lora.rank=0"}), /*of_checkpoint=*/false) / loss, 1, 1e-6);

    write_folder(files_, "/other", config_, ElementType::f32, 1, /*seed=*/2);
    ExportOptions other = to(o);
    other.base = "/other";
    EXPECT_THAT(error_of(Category::checkpoint,
                         [&] { export_folder(files_, checkpoint(4), other, "/wrong", [](int64_t, int64_t) {}); }),
                HasSubstr("was trained with another model than /other"));
    EXPECT_FALSE(files_.exists("/wrong"));
    other.base = "";
    EXPECT_THAT(error_of(Category::config,
                         [&] { export_folder(files_, checkpoint(4), other, "/wrong", [](int64_t, int64_t) {}); }),
                HasSubstr("by --base"));
}

TEST_F(LoraRun, FreezesWhatPatternsName) {
    RunOptions const o = options({"lora.rank=0", "train.freeze=[\"*.mlp.*\", model.embed_tokens.weight]"});
    auto const whole = train(o, 4);
    EXPECT_EQ(checkpoint(4).tensors().size(), 3u * (2 * 8 + 1));
    double const loss = loss_of(o);
    export_folder(files_, checkpoint(4), to(o), "/out", [](int64_t, int64_t) {});
    auto const before = stored_tensors(files_, "/hf"), after = stored_tensors(files_, "/out");
    ASSERT_EQ(after.size(), before.size());
    for (auto const& [name, bytes] : after) {
        bool const frozen = name.find(".mlp.") != name.npos || name == "model.embed_tokens.weight";
        EXPECT_EQ(bytes == before.at(name), frozen) << name;
    }
    init_from_ = "/out";
    EXPECT_EQ(loss_of(options({"output_dir=/elsewhere", "lora.rank=0"}), /*of_checkpoint=*/false), loss);
}

TEST_F(LoraRun, OptionsThatContradictAreNamed) {
    auto const problem = [](std::vector<std::string> overrides) {
        overrides.insert(overrides.end(), {"model.vocab_size=320", "data.mock_data=true"});
        auto const found = problems(parse_config("{}", "yaml", overrides), 1);
        return found.empty() ? "" : found.front();
    };
    EXPECT_EQ(problem({"lora.rank=8"}), "");
    EXPECT_THAT(problem({"lora.rank=8", "lora.targets=[q_proj, lm_head]"}),
                HasSubstr("lora.targets: `lm_head` is no linear layer of a block; there are q_proj, k_proj,"));
    EXPECT_EQ(problem({"lora.rank=8", "lora.targets=[]"}), "lora.rank is 8 and lora.targets is empty: name a target");
    EXPECT_EQ(problem({"lora.rank=8", "train.freeze=[\"*norm*\"]"}),
              "train.freeze and lora.rank (8): with adapters all of the model's own weights are frozen");
    EXPECT_THAT(problem({"train.freeze=[\"*.q_proj.weight\"]"}), HasSubstr("are one matrix: freeze both or none"));
    EXPECT_THAT(problem({"lora.init_from=/somewhere"}), HasSubstr("no effect where lora.rank is 0"));
    EXPECT_EQ(problem({"lora.rank=8", "precision.linear=fp8_block"}), "lora.rank (8) needs precision.linear: bf16");
    EXPECT_EQ(problem({"train.freeze=[\"*norm*\"]", "precision.linear=fp8_block"}), "");
    EXPECT_EQ(problem({"lora.rank=8", "attention.key_conv=3"}), "");
}

}  // namespace
}  // namespace perigee
