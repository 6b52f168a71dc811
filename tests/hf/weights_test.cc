// Folders of weights: one file or many behind an index, any part of any tensor, and what is refused.
#include "hf/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hf/hf_folder.h"
#include "support/fault_file_system.h"

namespace perigee {
namespace {

using namespace testing;
using ::testing::HasSubstr;

class HfWeightsTest : public ::testing::Test {
  protected:
    void write(ElementType type, size_t shards) {
        files_.remove_all("/model");
        write_folder(files_, "/model", config_, type, shards);
    }
    std::string error() {
        return error_of(Category::checkpoint, [&] { HfWeights(files_, "/model").check(specs_); });
    }
    void replace(std::string const& name, std::vector<SafetensorsWriter::Tensor> const& tensors) {
        SafetensorsWriter writer(files_, Path("/model") / name, tensors);
        for (auto const& t : tensors) writer.write(t.name, 0, std::vector<float>(static_cast<size_t>(t.shape.size())));
        writer.finish();
    }
    void write_index(std::string const& text) { write_text(files_, Path("/model") / kIndexName, text); }

    std::string config_ = small_config("qwen2", false);
    std::vector<ParamSpec> specs_ = llama_params(parse_hf_config(config_, "config").model);
    MemoryFileSystem files_;
};

TEST_F(HfWeightsTest, every_layout_of_ranks_and_files_gives_the_same_values_and_reads_no_other_bytes) {
    for (ElementType const type : {ElementType::f32, ElementType::bf16, ElementType::f16}) {
        for (size_t const shards : {1, 3}) {
            write(type, shards);
            for (int const tp : {1, 2}) {
                for (int rank = 0; rank < tp; ++rank) {
                    FaultFileSystem counted(files_);
                    ParamLayout const layout(specs_, tp, rank);
                    HfWeights const weights(counted, "/model");
                    weights.check(specs_);
                    EXPECT_EQ(weights.type(specs_), type);
                    int64_t const headers = counted.bytes_read();
                    auto values = poisoned<float>(layout.size());
                    for (ParamLayout::Entry const& entry : layout.entries())
                        weights.read(entry.spec.name, entry.shard,
                                     std::span(values).subspan(static_cast<size_t>(entry.offset),
                                                               static_cast<size_t>(entry.local.size())));
                    EXPECT_EQ(counted.bytes_read() - headers, layout.size() * size_of(type));
                    EXPECT_LT(headers, 8000);
                    for (ParamLayout::Entry const& entry : layout.entries()) {
                        auto const all = exact_values(entry.spec.shape.size(), 1 + hash_name(entry.spec.name));
                        for (Shard::Run const& run : entry.shard.runs())
                            for (int64_t i = 0; i < run.count; ++i)
                                ASSERT_EQ(values[static_cast<size_t>(entry.offset + run.local + i)],
                                          all[static_cast<size_t>(run.global + i)])
                                    << entry.spec.name;
                    }
                }
            }
        }
    }
}

TEST_F(HfWeightsTest, missing_foreign_and_misshapen_tensors_are_named) {
    write(ElementType::bf16, 1);
    EXPECT_EQ(error(), "nothing was thrown");
    files_.remove_all("/model/model.safetensors");
    EXPECT_EQ(error(), "/model holds neither model.safetensors nor model.safetensors.index.json");
    for (std::string const name : {"pytorch_model.bin.index.json", "pytorch_model.bin"}) {
        write_text(files_, "/model/" + name, "PK");
        EXPECT_EQ(error(), "/model holds " + name +
                               ", but neither model.safetensors nor model.safetensors.index.json: only safetensors "
                               "are read");
    }

    auto tensors_of = [&](auto&& change) {
        std::vector<SafetensorsWriter::Tensor> tensors;
        for (ParamSpec const& spec : specs_) tensors.push_back({spec.name, ElementType::f32, spec.shape});
        change(tensors);
        replace(kWeightsName, tensors);
        return error();
    };
    EXPECT_EQ(tensors_of([](auto& t) { t.erase(t.begin() + 1); }),
              "/model has no tensor `model.layers.0.input_layernorm.weight`");
    EXPECT_EQ(tensors_of([](auto& t) {
                  t[0].shape = {23, 12};
              }),
              "/model/model.safetensors: tensor `model.embed_tokens.weight` is [23, 12]; the model's options make it "
              "[24, 12]");
    EXPECT_EQ(
        tensors_of([](auto& t) {
            t.push_back({"model.layers.2.x", ElementType::f32, {1}});
        }),
        "/model/model.safetensors: tensor `model.layers.2.x` has no place in the model that the options describe");
    EXPECT_EQ(tensors_of([](auto& t) {
                  t.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", ElementType::f32, {3}});
              }),
              "nothing was thrown");
}

TEST_F(HfWeightsTest, a_tied_model_may_store_an_equal_classifier_and_an_untied_one_must) {
    write(ElementType::f32, 1);  // untied
    std::vector<ParamSpec> const tied = llama_params(parse_hf_config(small_config("qwen2", true), "config").model);
    EXPECT_THAT(error_of(Category::checkpoint, [&] { HfWeights(files_, "/model").check(tied); }),
                ::testing::AllOf(HasSubstr("`lm_head.weight` differs from `model.embed_tokens.weight` (element 0: "),
                                 HasSubstr("`tie_word_embeddings`: true. Set it to false")));
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (ParamSpec const& spec : specs_) tensors.push_back({spec.name, ElementType::f32, spec.shape});
    replace(kWeightsName, tensors);  // all zero, so equal
    EXPECT_NO_THROW(HfWeights(files_, "/model").check(tied));
    tensors.back().shape = {2, 12};
    ASSERT_EQ(tensors.back().name, "lm_head.weight");
    replace(kWeightsName, tensors);
    EXPECT_THAT(error_of(Category::checkpoint, [&] { HfWeights(files_, "/model").check(tied); }),
                HasSubstr("`lm_head.weight` is [2, 12] and"));
    files_.remove_all("/model");
    write_folder(files_, "/model", small_config("qwen2", true), ElementType::f32, 1);
    EXPECT_EQ(error(), "/model has no tensor `lm_head.weight`");
}

TEST_F(HfWeightsTest, other_types_are_refused_by_name) {
    files_.make_directories("/model");
    write_text(files_, "/model/model.safetensors",
               raw_safetensors(R"({"w":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})", std::string(8, 'v')));
    std::vector<ParamSpec> const specs = {{.name = "w", .shape = {1}}};
    std::string const message = "/model/model.safetensors: tensor `w` is F64; F32, BF16 and F16 can be read";
    EXPECT_EQ(error_of(Category::checkpoint, [&] { HfWeights(files_, "/model").check(specs); }), message);
    float value = 0;
    EXPECT_EQ(error_of(Category::checkpoint,
                       [&] {
                           HfWeights(files_, "/model").read("w", whole_shard({1}), {&value, 1});
                       }),
              message);
}

TEST_F(HfWeightsTest, an_index_is_held_against_the_files) {
    files_.make_directories("/model");
    replace("one.safetensors", {{"a", ElementType::f32, {1}}});
    replace("two.safetensors", {{"b", ElementType::f32, {1}}});
    files_.make_directories("/outside");
    files_.rename("/model/one.safetensors", "/outside/one.safetensors");
    replace("one.safetensors", {{"a", ElementType::f32, {1}}});
    std::string const index = "/model/model.safetensors.index.json";
    auto const refused = [&](std::string const& text) {
        write_index(text);
        return error_of(Category::checkpoint, [&] { HfWeights(files_, "/model"); });
    };
    EXPECT_EQ(refused(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})"), "nothing was thrown");
    EXPECT_EQ(refused("["), index + ": not JSON at byte 2");
    EXPECT_EQ(refused("{}"), index + ": there is no object `weight_map`");
    EXPECT_EQ(refused(R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})"),
              index + ": the key \"a\" is there twice");
    EXPECT_EQ(refused(R"({"weight_map":{"a":1}})"),
              index + ": tensor `a`: 1 is not the plain name of a file in the folder");
    for (std::string const path : {"../outside/one.safetensors", "/outside/one.safetensors", "", ".", "..", ".hidden",
                                   "a/b", "one.safetensors\\u0000", "c:one"})
        EXPECT_EQ(refused("{\"weight_map\":{\"a\":\"" + path + "\"}}"),
                  index + ": tensor `a`: \"" + path + "\" is not the plain name of a file in the folder");
    EXPECT_EQ(refused(R"({"weight_map":{"c":"one.safetensors"}})"),
              index + ": tensor `c` should be in one.safetensors, which lacks it");
    EXPECT_EQ(refused(R"({"weight_map":{"b":"two.safetensors","a":"two.safetensors"}})"),
              index + ": tensor `a` should be in two.safetensors, which lacks it");
    replace("two.safetensors", {{"b", ElementType::f32, {1}}, {"c", ElementType::f32, {1}}});
    EXPECT_EQ(refused(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})"),
              index + ": tensor `c` is in two.safetensors, where the index does not expect it");
    EXPECT_THAT(refused(R"({"weight_map":{"a":"three.safetensors"}})"), HasSubstr("/model/three.safetensors"));
}

}  // namespace
}  // namespace perigee
