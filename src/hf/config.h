// config.json of a Hugging Face folder: which model it is. Llama 2 and 3, Mistral without a sliding window, Qwen2 and
// Qwen3 (dense) can be read. A field that asks for anything else is refused by name; so is a field this program does
// not know, unless it is null, false or 0. MoBA's settings are kept under the key `perigee`, which transformers
// ignores.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hf/element_type.h"
#include "io/file_system.h"
#include "model/options.h"

namespace perigee {

inline constexpr char kConfigName[] = "config.json";
inline constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;  ///< of the files that are accepted

struct HfConfig {
    ModelOptions model;
    std::optional<AttentionOptions> attention;  ///< where the key `perigee` is there
    std::string text;                           ///< the file as it was
};

/// Category::config naming file, field and value for anything that is not such a model.
HfConfig read_hf_config(FileSystem& files, Path const& folder);
HfConfig parse_hf_config(std::string text, std::string const& where);

/// Whether a folder of weights has a config.json, or is a checkpoint.
bool says_its_model(FileSystem& files, Path const& folder);

/// config.json of a model with its weights in `type`; parse_hf_config() gives the same options back. `base`, where not
/// empty, is the config.json the model came from, whose other fields stay. Category::config for a model that no
/// architecture of Hugging Face describes.
std::string write_hf_config(ModelOptions const& model, AttentionOptions const& attention, ElementType type,
                            std::string const& base);

/// A config.json or generation_config.json whose eos_token_id names these tokens too, after its own. Throws
/// Category::config where the text is damaged and there are such tokens.
std::string with_ends(std::string const& text, std::vector<int32_t> const& ends, std::string const& where);

/// Why write_hf_config() refuses this model, or writes what another model reads; empty where it does neither.
std::string export_problem(ModelOptions const& model, AttentionOptions const& attention);

}  // namespace perigee
