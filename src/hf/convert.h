// Hugging Face folder to checkpoint and back. Memory stays within the largest tensor plus a constant. The output
// appears under its name when it is whole, and not before; what is in the way of that name is an error, never replaced.
#pragma once

#include <functional>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "hf/config.h"
#include "io/file_system.h"

namespace perigee {

/// Told about bytes of values done, of all.
using ConversionProgress = std::function<void(int64_t done, int64_t total)>;

/// Names of the files in `folder` that belong to its tokenizer or to generation: what travels along with a model.
std::vector<std::string> companion_files(FileSystem& files, Path const& folder);

/// Makes `output` a checkpoint of the weights in a Hugging Face folder, widened to fp32, with the folder's config.json
/// and companion files beside them. Every run can start from it, and eval and generate can read it.
void import_checkpoint(FileSystem& files, Path const& folder, Path const& output, ConversionProgress const& progress);

struct ExportOptions {
    ModelOptions model;
    AttentionOptions attention;
    ElementType type = ElementType::f32;
    int64_t shard_bytes = int64_t{5} << 30;  ///< values per file; a larger tensor has a file of its own
    Path origin;                             ///< folder whose config.json the model began with; may be empty
    Path companions;                         ///< folder of companion files to take along; empty takes those of `origin`
    Path base;                               ///< base model of an adapter checkpoint; may be empty
    std::string chat_template;               ///< Jinja, which the model was trained with; empty: the companions' own
    std::vector<int32_t> ends;               ///< tokens that end a text or an answer, for eos_token_id
};
/// Makes `output` a Hugging Face folder with a checkpoint's weights. Adapters are merged into the weights.
void export_folder(FileSystem& files, Checkpoint const& checkpoint, ExportOptions const& options, Path const& output,
                   ConversionProgress const& progress);

/// Makes `output` a PEFT folder with a checkpoint's adapters. Its config names `options.base` as the base model.
void export_adapters(FileSystem& files, Checkpoint const& checkpoint, ExportOptions const& options, Path const& output);

/// The type of the weights that a converted checkpoint was made from; fp32 where it does not say.
ElementType source_type(Checkpoint const& checkpoint);

}  // namespace perigee
