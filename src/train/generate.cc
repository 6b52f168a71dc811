#include "train/generate.h"

#include "base/log.h"
#include "data/jinja_template.h"
#include "eval/sampling.h"
#include "train/ending.h"
#include "train/prompt_encoder.h"
#include "train/text_model.h"

namespace perigee {

bool has_chat_template(Session& session) {
    RunOptions const& options = session.options();
    return resolved(session.files(), options.data.tokenizer, options.chat).format != ChatFormat::none;
}

std::string room_problem(int64_t tokens, int64_t most) {
    if (tokens < most) return {};
    return fmt::format("has {} tokens; model.max_position_embeddings is {}, so a prompt may have at most {}", tokens,
                       most, most - 1);
}

namespace {

/// `ids`: of a prompt that leaves room.
void go_on_from(std::vector<int32_t> ids, PromptEncoder const& encoder, Session& session, RunState const& state,
                std::function<void(std::string const&)> const& sink) {
    RunOptions const& options = session.options();
    StreamDecoder stream(encoder.tokenizer());
    Ending ending(encoder.stop(), [&](int32_t id) { sink(stream.push(id)); });
    int64_t const most = options.model.max_position_embeddings;
    TextModel model(session, session.selections(state.step));
    Sampler sampler(options.generate, options.seed, encoder.tokenizer().vocab_size());
    sampler.see(ids);
    for (int64_t i = 0; i < options.generate.max_tokens; ++i) {
        if (std::ssize(model.text()) + std::ssize(ids) >= most) break;
        int32_t next = model.draw(ids, sampler);
        session.mesh().world().broadcast(TensorView(&next, {1}), 0);  // ranks that leave early leave others waiting
        if (ending.push(next)) return sink(stream.finish());
        ids = {next};
    }
    ending.release_all();
    sink(stream.finish());
}

}  // namespace

void generate(Session& session, RunState const& state, std::function<void(std::string const&)> const& sink) {
    RunOptions const& options = session.options();
    PromptEncoder const encoder(session, state);
    auto ids = encoder.encode(options.generate.system, options.generate.prompt);
    std::string const problem = room_problem(std::ssize(ids), options.model.max_position_embeddings);
    if (!problem.empty()) fail(Category::data, "generate.prompt {}", problem);
    go_on_from(std::move(ids), encoder, session, state, sink);
}

void generate(Session& session, RunState const& state, std::string const& prompt,
              std::function<void(std::string const&)> const& sink) {
    RunOptions const& options = session.options();
    PromptEncoder const encoder(session, state);
    auto ids = encoder.encode(options.generate.system, prompt);
    std::string const problem = room_problem(std::ssize(ids), options.model.max_position_embeddings);
    if (problem.empty()) return go_on_from(std::move(ids), encoder, session, state, sink);
    if (session.mesh().world().rank() == 0) log::warn("no text is generated: the prompt {}", problem);
}

}  // namespace perigee
