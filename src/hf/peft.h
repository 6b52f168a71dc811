// Folders of Hugging Face's PEFT that hold LoRA adapters: adapter_config.json and adapter_model.safetensors.
// Source: https://huggingface.co/docs/peft/developer_guides/checkpoint
#pragma once

#include <string>
#include <vector>

#include "hf/weights.h"
#include "model/options.h"

namespace perigee {

inline constexpr char kAdapterConfigName[] = "adapter_config.json";
inline constexpr char kAdapterWeightsName[] = "adapter_model.safetensors";

/// PEFT's name of an adapter's parameter.
std::string peft_name(std::string const& parameter);
/// The parameters of a model's adapters, by PEFT's names.
std::vector<ParamSpec> peft_params(ModelOptions const& model);

/// adapter_config.json; `base` names the model that the adapters belong to, as a path or otherwise.
std::string write_adapter_config(LoraOptions const& lora, std::string const& base);

/// What a folder's adapters are. Throws Category::config, naming the key, for a kind that this program does not have.
LoraOptions read_adapter_config(FileSystem& files, Path const& folder);

/// Adapters of these options' rank, alpha and targets. Throws Category::config where the folder's are others.
HfWeights open_adapters(FileSystem& files, Path const& folder, LoraOptions const& lora);

}  // namespace perigee
