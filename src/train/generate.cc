#include "train/generate.h"

#include <algorithm>

#include "data/chat_encoder.h"
#include "eval/sampling.h"
#include "train/text_model.h"

namespace perigee {

namespace {

ChatEncoder chat_encoder(RunOptions const& options, Tokenizer const& tokenizer) {
    return ChatEncoder(options.chat, options.model.max_position_embeddings, tokenizer);
}

/// What the model is given to go on from.
std::vector<int32_t> opening(RunOptions const& options, Tokenizer const& tokenizer, ChatEncoder const& chat) {
    if (options.chat.format == ChatFormat::none) {
        std::vector<int32_t> ids = tokenizer.prefix();
        std::ranges::copy(tokenizer.encode_with_special(options.generate.prompt), std::back_inserter(ids));
        return ids;
    }
    std::vector<Message> messages;
    if (!options.generate.system.empty()) messages.push_back({kInstructs, options.generate.system});
    messages.push_back({kAsks, options.generate.prompt});
    return chat.prompt(messages);
}

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

void generate(Session& session, int64_t step, std::function<void(std::string const&)> const& sink) {
    RunOptions const& options = session.options();
    auto const tokenizer = make_tokenizer(session.files(), options.data.tokenizer);
    check_vocabulary(*tokenizer, options.model.vocab_size);
    ChatEncoder const chat = chat_encoder(options, *tokenizer);
    std::vector<int32_t> ids = opening(options, *tokenizer, chat);
    StreamDecoder stream(*tokenizer);
    Ending ending(chat.stop(), [&](int32_t id) { sink(stream.push(id)); });
    if (ids.empty()) fail(Category::config, "generate.prompt is empty: at least one token is needed to go on from");
    int64_t const most = options.model.max_position_embeddings;
    int64_t const longest = std::min(most, std::ssize(ids) + options.generate.max_tokens);
    TextModel model(session, session.selections(step), longest);
    Philox const random(static_cast<uint64_t>(options.seed), Purpose::generate);
    for (int64_t i = 0; i < options.generate.max_tokens; ++i) {
        if (std::ssize(model.text()) + std::ssize(ids) >= most) break;
        int32_t const next = sample_token(model.append(ids), tokenizer->vocab_size(), options.generate, random, i);
        if (ending.push(next)) return sink(stream.finish());
        ids = {next};
    }
    ending.release_all();
    sink(stream.finish());
}

}  // namespace perigee
