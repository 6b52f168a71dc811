// The options of a run: defaults, the files that ship, the rules between fields, and the committed reference page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/philox.h"
#include "config/config.h"
#include "config/schema_yaml.h"

namespace perigee {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::filesystem::path source() { return std::filesystem::path(__FILE__).parent_path().parent_path().parent_path(); }

std::string read(std::filesystem::path const& path) {
    std::ifstream const file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

RunOptions with(std::string const& yaml) { return parse_config("data: {mock_data: true}\n" + yaml, "f.yaml", {}); }

std::string refusal(std::string const& yaml, std::vector<std::string> const& overrides = {}) {
    try {
        parse_config(yaml, "f.yaml", overrides);
        return "accepted";
    } catch (Error const& error) {
        EXPECT_EQ(error.category(), Category::config);
        return error.what();
    }
}

TEST(RunOptionsYaml, OfEveryShippedConfigurationIsValidAndFreeOfProblems) {
    int files = 0;
    for (auto const& entry : std::filesystem::directory_iterator(source() / "configs")) {
        if (entry.path().extension() != ".yaml") continue;
        ++files;
        RunOptions options = load_config(entry.path(), {});
        if (!options.data.mock_data)
            options = load_config(entry.path(), {"data.mock_data=true", "data.train=[]", "data.validation_fraction=0"});
        EXPECT_THAT(problems(options, 1), IsEmpty()) << entry.path();
        EXPECT_THAT(problems(options, 2), IsEmpty()) << entry.path();
    }
    EXPECT_GE(files, 2);
}

TEST(RunOptionsYaml, TakeAWordOrANumberOfOffloadedLayers) {
    RunOptions const automatic = with("train: {offload: auto}");
    EXPECT_EQ(automatic.train.offload, kOffloadAuto);
    EXPECT_THAT(to_yaml(automatic), HasSubstr("\n  offload: auto\n"));
    EXPECT_EQ(with("train: {offload: \"auto\"}").train.offload, kOffloadAuto);
    EXPECT_EQ(with("train: {offload: 7}").train.offload, 7);
    EXPECT_THAT(refusal("train: {offload: -1}"), HasSubstr("train.offload must be between 0 and 4096, found -1"));
    EXPECT_THAT(refusal("train: {offload: all}"), HasSubstr("expected an integer or auto, found the text \"all\""));
    EXPECT_THAT(refusal("train: {mlp_chunk: auto}"), HasSubstr("expected an integer, found the text \"auto\""));
    auto const keys = config_keys();
    auto const offload = std::ranges::find(keys, "train.offload", &ConfigKey::name);
    ASSERT_NE(offload, keys.end());
    EXPECT_THAT(offload->values, ElementsAre("auto"));
}

TEST(RunOptionsYaml, HasMobasKeysBesideTheOthersOfAttention) {
    auto const options = with(
        "attention:\n"
        "  kind: moba\n"
        "  block_size: 64\n"
        "  top_k: 5\n"
        "  force_previous: true\n"
        "  force_first: true\n"
        "  key_conv: 5\n"
        "  shared_selection: group\n"
        "  full_layers: [0, 3]\n"
        "  schedule: [{step: 0, kind: full}, {step: 100, kind: moba}]\n");
    EXPECT_EQ(options.attention.moba.block_size, 64);
    EXPECT_EQ(options.attention.moba.top_k, 5);
    EXPECT_TRUE(options.attention.moba.force_previous);
    EXPECT_TRUE(options.attention.moba.force_first);
    EXPECT_EQ(options.model.key_conv, 5);
    EXPECT_EQ(with("").model.key_conv, 0);
    EXPECT_THAT(refusal("attention: {key_conv: 4}\n"), HasSubstr("none, 3, 5"));
    EXPECT_EQ(options.attention.moba.selection, MobaSelection::per_group);
    EXPECT_THAT(options.attention.full_layers.layers, ElementsAre(0, 3));
    ASSERT_EQ(options.attention.schedule.size(), 2u);
    EXPECT_EQ(options.attention.schedule[1].step, 100);
    EXPECT_EQ(options.attention.schedule[0].kind, AttentionKind::full);
}

TEST(RunOptionsYaml, NamesTheLikelyKey) {
    EXPECT_EQ(refusal("model:\n  hiden_size: 32\noptimizer:\n  weigth_decay: 0.1\n", {"trian.steps=1"}),
              "f.yaml:2:3: unknown key \"hiden_size\" in model; did you mean \"hidden_size\"?\n"
              "f.yaml:4:3: unknown key \"weigth_decay\" in optimizer; did you mean \"weight_decay\"?\n"
              "command line: 'trian.steps=1': unknown key \"trian\"; did you mean \"train\"?");
    EXPECT_THAT(refusal("lr: 0.1\n"), HasSubstr("did you mean \"optimizer.lr\"?"));
    EXPECT_THAT(refusal("train: {batch_size: 0}\n"), HasSubstr("known are steps, epochs, global_batch_size"));
}

TEST(RunOptionsYaml, TakeAnOptionByOneOfItsNames) {
    EXPECT_THAT(refusal("parallel:\n  shard: weights\n  zero: false\n"),
                HasSubstr("f.yaml:3:3: duplicate key \"zero\" in parallel, first given as \"shard\" on line 2"));
    EXPECT_THAT(refusal("parallel: {zero: true, shard: none}\n"), HasSubstr("first given as \"zero\" on line 1"));
    EXPECT_EQ(with("parallel: {zero: true}\n").parallel.shard, ShardStage::optimizer);
}

TEST(RunOptionsYaml, OfAMissingFileNamesIt) {
    try {
        load_config("/nowhere/at_all.yaml", {});
        ADD_FAILURE() << "accepted";
    } catch (Error const& error) {
        EXPECT_EQ(error.category(), Category::config);
        EXPECT_STREQ(error.what(),
                     "the configuration cannot be read: cannot open /nowhere/at_all.yaml: No such file or directory");
    }
    EXPECT_THROW(load_config(std::filesystem::temp_directory_path(), {}), Error);
}

TEST(RunOptionsYaml, OfWeightsThatAreNotHereSaysWhereTheyMustBe) {
    EXPECT_THAT(refusal("model: {init_from: some/Model-1B}\n"),
                HasSubstr("there is no folder some/Model-1B; nothing is downloaded"));
    EXPECT_THAT(refusal("model: {init_from: ~/Model-1B}\n"), HasSubstr("~/Model-1B; ~ is not expanded here"));
}

TEST(RunOptionsYaml, OfAFolderNamesTheFileToGive) {
    Path const folder = std::filesystem::path(::testing::TempDir()) / "perigee_a_run";
    std::filesystem::create_directories(folder);
    auto const refused = [&] {
        try {
            load_config(folder, {});
        } catch (Error const& error) {
            return std::string(error.what());
        }
        return std::string("accepted");
    };
    EXPECT_THAT(refused(), HasSubstr("Is a directory; a YAML file is expected"));
    std::ofstream(folder / "config.yaml") << "seed: 3\n";
    EXPECT_THAT(refused(), HasSubstr("Is a directory; give " + (folder / "config.yaml").string()));
    std::filesystem::remove_all(folder);
}

/// Sets every field of a schema to a random value it allows.
class Randomizer {
  public:
    explicit Randomizer(uint64_t seed) : random_(seed, Purpose::mock_data) {}
    void fill(Schema const& schema) {
        for (Field const& field : schema.fields())
            std::visit([&](auto const& target) { set(field.range, target); }, field.target);
    }

  private:
    uint64_t below(uint64_t n) { return random_.below(next_++, n); }
    double uniform() { return random_.uniform(next_++); }
    static double low(Range const& range) { return std::max(range.low, -1e9); }
    static double high(Range const& range) { return std::min(range.high, 1e12); }

    void set(Range const&, bool* target) { *target = below(2) == 0; }
    void set(Range const& range, int64_t* target) {
        auto const first = static_cast<int64_t>(low(range)), last = static_cast<int64_t>(high(range));
        uint64_t const span = below(2) == 0 ? 100 : static_cast<uint64_t>(last - first) + 1;
        *target = std::min(last, first + static_cast<int64_t>(below(span)));
    }
    void set(Range const& range, double* target) {
        double const scale = below(2) == 0 ? 1.0 : 1e-6;
        *target =
            std::min(high(range), low(range) + (1e-12 + uniform()) * scale * std::min(1e3, high(range) - low(range)));
    }
    void set(Range const&, std::string* target) {
        static std::vector<std::string> const kTexts = {"",        "auto", "yes", "0x1", "a b", "\n", "it's \"so\": #1",
                                                        "\xC3\xA9"};
        *target = kTexts[below(kTexts.size())];
    }
    void set(Range const& range, std::vector<int64_t>* target) {
        target->resize(below(4));
        for (int64_t& value : *target) set(range, &value);
    }
    void set(Range const& range, std::vector<std::string>* target) {
        target->resize(below(4));
        for (std::string& value : *target) set(range, &value);
    }
    void set(Range const&, Field::Choice const& target) { target.select(below(target.names.size())); }
    void set(Range const&, Field::Section const& target) { fill(*target.schema); }
    void set(Range const&, Field::List const& target) {
        target.clear();
        for (uint64_t i = 0, count = below(3); i < count; ++i) fill(target.append());
    }

    Philox random_;
    uint64_t next_ = 0;
};

TEST(RunOptionsYaml, WrittenReadsBackAsTheSame) {
    RunOptions const untouched;
    std::string const defaults = to_yaml(untouched);
    EXPECT_EQ(to_yaml(parse_config(defaults, "f.yaml", {})), defaults);
    for (uint64_t seed = 0; seed < 300; ++seed) {
        RunOptions options;
        Schema schema;
        describe(schema, options);
        Randomizer(seed).fill(schema);
        options.model.init_from.clear();  // would have to be a folder
        std::string const yaml = to_yaml(options);
        ASSERT_NE(yaml, defaults);
        ASSERT_EQ(to_yaml(parse_config(yaml, "f.yaml", {})), yaml) << "seed " << seed;
    }
}

struct Rule {
    char const* yaml;
    int world_size;
    std::vector<char const*> parts;  ///< of the one sentence
};

TEST(Problems, NameTheKeysAndBothNumbers) {
    std::vector<Rule> const rules = {
        {"model: {num_attention_heads: 4, num_key_value_heads: 3}",
         1,
         {"num_attention_heads", "4", "num_key_value_heads", "3"}},
        {"model: {hidden_size: 34, num_attention_heads: 4}", 1, {"hidden_size", "34", "num_attention_heads", "4"}},
        {"model: {num_hidden_layers: 2}\nattention: {full_layers: [2]}", 1, {"full_layers", "2", "num_hidden_layers"}},
        {"train: {global_batch_size: 8, micro_batch_size: 3}",
         1,
         {"global_batch_size (8)", "micro_batch_size (3)", "ranks (1)"}},
        {"train: {global_batch_size: 8, micro_batch_size: 2}",
         3,
         {"global_batch_size (8)", "micro_batch_size (2)", "ranks (3)"}},
        {"train: {global_batch_size: 2, micro_batch_size: 4}", 1, {"global_batch_size (2)", "micro_batch_size (4)"}},
        {"parallel: {data: 4}", 2, {"data 4", "2 ranks"}},
        {"parallel: {tensor: 2}", 1, {"tensor 2", "launch/mpirun.sh N starts N ranks"}},
        {"model: {max_position_embeddings: 512}", 1, {"sequence_length (1024)", "max_position_embeddings (512)"}},
        {"schedule: {warmup_steps: 2000}", 1, {"warmup_steps (2000)", "train.steps (1000)"}},
        {"schedule: {warmup_steps: 600, decay: wsd, decay_steps: 500}",
         1,
         {"warmup_steps (600)", "decay_steps (500)", "(1000)"}},
        {"output_dir: \"\"", 1, {"output_dir"}},
        {"output_dir: ~/runs/a", 1, {"output_dir (~/runs/a)", "whole path", "./~/runs/a"}},
        {"checkpoint: {resume: ~/a}", 1, {"checkpoint.resume (~/a)", "whole path"}},
        {"model: {num_key_value_heads: 2}\nparallel: {tensor: 4}", 4, {"num_key_value_heads (2)", "tensor (4)"}},
        {"model: {intermediate_size: 770}\nparallel: {tensor: 4}", 4, {"intermediate_size (770)", "tensor (4)"}},
        {"model: {vocab_size: 1001}\nparallel: {tensor: 2}", 2, {"vocab_size (1001)", "tensor (2)"}},
        {"parallel: {context: 3}", 3, {"sequence_length (1024)", "context (3)", "tensor (1)"}},
        {"model: {num_key_value_heads: 2}\nparallel: {context: 4, context_mode: ulysses}",
         4,
         {"2 key/value", "context = 4"}},
        {"model: {num_key_value_heads: 4}\nparallel: {tensor: 2, head_groups: 4}",
         2,
         {"head_groups (4)", "(4 / parallel.tensor = 2)"}},
        {"attention: {key_conv: 3}\nparallel: {context: 2}", 2, {"attention.key_conv (3)", "context of 1, not 2"}},
        {"attention: {force_first: true, top_k: 2}", 1, {"top_k = 2", "force_first needs at least 3", "sink_nearest"}},
        {"train: {global_batch_size: 65536, micro_batch_size: 65536}", 1, {"65536", "1024", "16777216"}},
    };
    for (Rule const& rule : rules) {
        auto const found = problems(with(rule.yaml), rule.world_size);
        ASSERT_EQ(found.size(), 1u) << rule.yaml << "\n" << ::testing::PrintToString(found);
        for (char const* const part : rule.parts) EXPECT_THAT(found[0], HasSubstr(part)) << rule.yaml;
    }
}

TEST(Problems, AreAllReportedAtOnce) {
    EXPECT_EQ(
        problems(with("model: {num_key_value_heads: 3}\nschedule: {warmup_steps: 5000}\noutput_dir: \"\""), 1).size(),
        3u);
    EXPECT_THAT(problems(with("parallel: {tensor: 3}"), 3),
                ::testing::IsSupersetOf({"model.num_attention_heads (4) must be a multiple of parallel.tensor (3)",
                                         "model.num_key_value_heads (4) must be a multiple of parallel.tensor (3)"}));
}

TEST(Problems, WantHeldOutDataForEvaluation) {
    auto const found =
        problems(parse_config("eval: {every: 10}\ndata: {train: [{path: /nowhere/x}]}", "f.yaml", {}), 1);
    EXPECT_THAT(found, ::testing::Contains(HasSubstr("eval.every is 10 but there is no held-out data")));
    auto const fraction = problems(
        parse_config("eval: {every: 10}\ndata: {train: [{path: /nowhere/x}], validation_fraction: 0.1}", "f.yaml", {}),
        1);
    EXPECT_THAT(fraction, ::testing::Not(::testing::Contains(HasSubstr("held-out"))));
}

TEST(Problems, WantTrainingDataWhereItIsRead) {
    RunOptions const none = parse_config("eval: {every: 0}", "f.yaml", {});
    EXPECT_THAT(problems(none, 1), ElementsAre(HasSubstr("data.train: no data sets given")));
    EXPECT_THAT(problems(none, 1, TrainingData::not_needed), IsEmpty());
}

TEST(ReferencePage, IsTheGeneratedOne) {
    EXPECT_EQ(read(source() / "docs/config.md"), config_reference())
        << "docs/config.md is out of date: build/cpu/bin/config_reference > docs/config.md";
}

}  // namespace
}  // namespace perigee
