// A tokenizer from a file or from the folder of a Hugging Face model.
#pragma once

#include <memory>

#include "data/tokenizer.h"
#include "io/file_system.h"

namespace perigee {

/// `path` is a tokenizer.model, a tokenizer.json, or a folder with one of them (where it has both, the first, of which
/// the other is a copy). The token that ends documents is eos_token of the tokenizer_config.json beside it, else the
/// (first) eos_token_id of the config.json, else the sentencepiece model's own. Throws Category::config.
std::unique_ptr<Tokenizer> open_tokenizer(FileSystem& files, Path const& path);

/// Whether open_tokenizer() finds a file in the folder.
bool has_tokenizer(FileSystem& files, Path const& folder);

}  // namespace perigee
