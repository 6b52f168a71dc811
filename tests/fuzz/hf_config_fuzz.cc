// config.json. An accepted one describes a model that the program can lay out, and comes back from what export writes.
#include "fuzz/fuzz.h"
#include "hf/config.h"
#include "hf/schema_json.h"
#include "model/llama.h"

namespace perigee::testing {

namespace {

std::string text_of(ModelOptions model) {
    Schema schema;
    describe(schema, model);
    return write_json(schema);
}

void use(HfConfig const& config) {
    if (config.model.num_hidden_layers <= 64) (void)llama_params(config.model);
    AttentionOptions const attention = config.attention.value_or(AttentionOptions{});
    std::string const kept = write_hf_config(config.model, attention, ElementType::bf16, config.text);
    std::string const fresh = write_hf_config(config.model, attention, ElementType::f32, "");
    PERIGEE_CHECK(text_of(parse_hf_config(kept, "kept").model) == text_of(config.model), "the model changed: {}", kept);
    ModelOptions expected = config.model;  // written out, where the options leave it to the others
    expected.num_key_value_heads = expected.kv_heads();
    expected.head_dim = expected.head_size();
    PERIGEE_CHECK(text_of(parse_hf_config(fresh, "fresh").model) == text_of(expected), "the model changed: {}", fresh);
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
    std::vector<std::string> seeds;
    for (int kind = 0; kind < 4; ++kind) {
        ModelOptions model;
        model.vocab_size = 320;
        model.qkv_bias = kind == 1;
        model.qk_norm = kind == 2;
        model.rope_scaling.type = static_cast<RopeType>(kind);
        if (kind > 0) model.rope_scaling.factor = 4;
        seeds.push_back(write_hf_config(model, {}, ElementType::bf16, ""));
    }
    seeds.push_back(
        R"({"model_type":"mistral","vocab_size":8,"hidden_size":4,"intermediate_size":4,"num_hidden_layers":2,)"
        R"("num_attention_heads":8,"head_dim":2,"sliding_window":null,"rope_parameters":{"rope_type":"yarn",)"
        R"("factor":2.0,"rope_theta":1e4,"truncate":true,"original_max_position_embeddings":8},"dtype":"float16"})");
    seeds.push_back(
        R"({"model_type":"qwen2","architectures":["Qwen2ForCausalLM"],"vocab_size":8,"hidden_size":4,)"
        R"("intermediate_size":4,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,)"
        R"("use_sliding_window":false,"layer_types":["full_attention"],"rope_scaling":{"type":"linear","factor":2}})");
    return seeds;
}

}  // namespace perigee::testing

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
    using namespace perigee;
    std::optional<HfConfig> config;
    std::string const text(reinterpret_cast<char const*>(data), size);
    testing::may_refuse([&] { config = parse_hf_config(text, "config.json"); });
    if (config) testing::use(*config);  // from here on nothing may be refused
    return 0;
}
