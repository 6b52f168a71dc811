#include "train/generate.h"

#include <algorithm>

#include "data/jinja_template.h"
#include "eval/sampling.h"
#include "train/prompt_encoder.h"
#include "train/text_model.h"

namespace perigee {

namespace {

/// Holds tokens back as long as they may be the beginning of what ends an answer.
class Ending {
  public:
    Ending(std::vector<int32_t> stop, std::function<void(int32_t)> release)
        : stop_(std::move(stop)), release_(std::move(release)) {}

    /// True when the end is complete.
    bool push(int32_t id) {
        held_.push_back(id);
        while (!std::equal(held_.begin(), held_.end(), stop_.begin())) release_first();
        return held_.size() == stop_.size();
    }
    void release_all() {
        while (!held_.empty()) release_first();
    }

  private:
    void release_first() {
        release_(held_.front());
        held_.erase(held_.begin());
    }

    std::vector<int32_t> stop_, held_;
    std::function<void(int32_t)> release_;
};

}  // namespace

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
    Philox const random(static_cast<uint64_t>(options.seed), Purpose::generate);
    for (int64_t i = 0; i < options.generate.max_tokens; ++i) {
        if (std::ssize(model.text()) + std::ssize(ids) >= most) break;
        int32_t next = sample_token(model.append(ids), encoder.tokenizer().vocab_size(), options.generate, random, i);
        session.mesh().world().broadcast(TensorView(&next, {1}), 0);  // ranks that leave early leave others waiting
        if (ending.push(next)) return sink(stream.finish());
        ids = {next};
    }
    ending.release_all();
    sink(stream.finish());
}

}  // namespace perigee
