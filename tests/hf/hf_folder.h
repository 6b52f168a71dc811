// Hugging Face folders for tests: random models of every architecture, written by hand where the code under test reads.
#pragma once

#include <bit>
#include <map>
#include <string>
#include <vector>

#include "hf/config.h"
#include "hf/safetensors.h"
#include "hf/weights.h"
#include "model/llama.h"
#include "support/memory_file_system.h"
#include "support/random.h"

namespace perigee::testing {

inline void write_text(FileSystem& files, Path const& path, std::string const& text) {
    files.create(path)->write_at(0, std::as_bytes(std::span(text)));
}

/// The message of the Error that `action` throws; "nothing was thrown".
template <class Action>
std::string error_of(Category category, Action&& action) {
    try {
        action();
    } catch (Error const& e) {
        return e.category() == category ? e.what() : fmt::format("({}) {}", to_string(e.category()), e.what());
    }
    return "nothing was thrown";
}

/// A .safetensors file around any header, without the writer.
inline std::string raw_safetensors(std::string const& header, std::string const& values) {
    uint64_t const length = header.size();
    return std::string(reinterpret_cast<char const*>(&length), sizeof length) + header + values;
}

inline std::string small_config(std::string const& type, bool tied) {
    std::string const name = type == "llama"     ? "LlamaForCausalLM"
                             : type == "mistral" ? "MistralForCausalLM"
                             : type == "qwen2"   ? "Qwen2ForCausalLM"
                                                 : "Qwen3ForCausalLM";
    return fmt::format(
        R"({{"architectures":["{}"],"model_type":"{}","vocab_size":24,"hidden_size":12,"intermediate_size":20,)"
        R"("num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":6,"hidden_act":"silu",)"
        R"("max_position_embeddings":64,"rms_norm_eps":1e-06,"rope_theta":500.0,"tie_word_embeddings":{},)"
        R"("sliding_window":null,"eos_token_id":[3,4],"torch_dtype":"bfloat16"}})",
        name, type, tied);
}

/// Random values that every type holds exactly: 8 significant bits.
inline std::vector<float> exact_values(int64_t count, uint64_t seed) {
    std::vector<float> values = random_normal<float>(count, seed, 0.05);
    for (float& x : values) x = std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0xffff0000u);
    for (float& x : values) x = std::abs(x) < 1e-3f ? 0 : x;  // below, fp16 has fewer bits
    return values;
}

/// A folder of `shards` files with an index, or one file without.
inline void write_folder(FileSystem& files, Path const& folder, std::string const& config, ElementType type,
                         size_t shards, uint64_t seed = 1) {
    files.make_directories(folder);
    write_text(files, folder / kConfigName, config);
    write_text(files, folder / "generation_config.json", "{\"a\": 24}");
    auto const specs = llama_params(parse_hf_config(config, "config").model);
    std::string map;
    for (size_t shard = 0; shard < shards; ++shard) {
        std::string const name = shards == 1 ? kWeightsName : fmt::format("part-{}.safetensors", shard);
        std::vector<SafetensorsWriter::Tensor> tensors;
        for (size_t i = shard; i < specs.size(); i += shards) tensors.push_back({specs[i].name, type, specs[i].shape});
        SafetensorsWriter writer(files, folder / name, tensors);
        for (auto const& tensor : tensors) {
            writer.write(tensor.name, 0, exact_values(tensor.shape.size(), seed + hash_name(tensor.name)));
            map += fmt::format("{}\"{}\":\"{}\"", map.empty() ? "" : ",", tensor.name, name);
        }
        writer.finish();
    }
    if (shards > 1) write_text(files, folder / kIndexName, "{\"metadata\":{},\"weight_map\":{" + map + "}}");
}

/// Every tensor of a folder with its type and bytes.
inline std::map<std::string, std::string> stored_tensors(FileSystem& files, Path const& folder) {
    std::map<std::string, std::string> all;
    for (std::string const& name : files.list(folder)) {
        if (!name.ends_with(".safetensors")) continue;
        SafetensorsFile const file(files, folder / name);
        std::string const bytes = files.read_text(folder / name, 1 << 30);
        for (auto const& [key, tensor] : file.tensors())
            all[key] = tensor.dtype + tensor.shape.str() +
                       bytes.substr(static_cast<size_t>(tensor.offset), static_cast<size_t>(tensor.bytes));
    }
    return all;
}

}  // namespace perigee::testing
