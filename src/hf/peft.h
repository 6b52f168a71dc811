// LoRA adapters in the format of Hugging Face's PEFT: adapter_config.json and adapter_model.safetensors.
// Source: https://huggingface.co/docs/peft/developer_guides/checkpoint
#pragma once

#include <string>
#include <vector>

#include "hf/weights.h"
#include "model/options.h"

namespace perigee {

inline constexpr char kAdapterConfigName[] = "adapter_config.json";
inline constexpr char kAdapterWeightsName[] = "adapter_model.safetensors";

/// PEFT's name for a parameter of an adapter.
std::string peft_name(std::string const& parameter);
/// Parameters of a model's adapters, with PEFT's names.
std::vector<ParamSpec> peft_params(ModelOptions const& model);

/// Writes adapter_config.json. `base` names the base model, as a path or otherwise.
std::string write_adapter_config(LoraOptions const& lora, std::string const& base);

/// Reads adapter_config.json. Throws Category::config, naming the key, for unsupported kinds of adapters.
LoraOptions read_adapter_config(FileSystem& files, Path const& folder);

/// Opens the adapters in a folder. Throws Category::config if their rank, alpha or targets differ from `lora`.
HfWeights open_adapters(FileSystem& files, Path const& folder, LoraOptions const& lora);

}  // namespace perigee
