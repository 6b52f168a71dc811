// Text from a trained model.
#pragma once

#include <functional>
#include <string>

#include "train/session.h"

namespace perigee {

/// Continues generate.prompt or, with a chat template, answers it, by up to generate.max_tokens tokens and hands the
/// text to `sink` as it comes, in whole characters. Stops at the end of the document or answer, or when
/// max_position_embeddings are used. Every token is computed from the whole text before it, as in training. Throws
/// Category::config for an empty prompt.
void generate(Session& session, int64_t step, std::function<void(std::string const&)> const& sink);

}  // namespace perigee
