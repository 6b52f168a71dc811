// Text from a trained model.
#pragma once

#include <functional>
#include <string>

#include "train/session.h"

namespace perigee {

/// Whether a chat template is in use, so that generate() answers a prompt instead of continuing it.
bool has_chat_template(Session& session);

/// Continues generate.prompt or, with a chat template, answers it, by up to generate.max_tokens tokens and hands the
/// text to `sink` as it comes, in whole characters. Stops at the end of the document or answer, or when
/// max_position_embeddings are used. Warns where the checkpoint of `state` was trained with another chat template.
/// Throws Category::config for an empty prompt, Category::data for one that leaves no room for an answer. Every rank
/// takes the tokens that rank 0 samples. Collective.
void generate(Session& session, RunState const& state, std::function<void(std::string const&)> const& sink);
/// The same for eval.prompt, or another one. Where it leaves no room there is a warning, and no text.
void generate(Session& session, RunState const& state, std::string const& prompt,
              std::function<void(std::string const&)> const& sink);

/// Answers the prompts of generate.input, several at a time, and writes generate.output: lines of JSON in the same
/// order, docs/generation.md. `before_pass` is called before each pass of the model. Throws before any pass.
/// Category::config: generate.output is the file of the prompts. Category::data: it cannot be written, or a line is no
/// prompt, or one that is empty or leaves no room for an answer; the message names file and line.
void generate_file(Session& session, RunState const& state, std::function<void()> const& before_pass);

/// What is wrong with a prompt of so many tokens where prompt and answer may have `most`; empty: nothing.
std::string room_problem(int64_t tokens, int64_t most);

}  // namespace perigee
