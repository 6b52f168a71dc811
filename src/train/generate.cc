#include "train/generate.h"

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

void generate(Session& session, RunState const& state, std::function<void(std::string const&)> const& sink) {
    generate(session, state, session.options().generate.prompt, sink);
}

void generate(Session& session, RunState const& state, std::string const& prompt,
              std::function<void(std::string const&)> const& sink) {
    RunOptions const& options = session.options();
    PromptEncoder const encoder(session, state);
    std::vector<int32_t> ids = encoder.encode(options.generate.system, prompt);
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

}  // namespace perigee
