#include "train/generate.h"

#include <numeric>

#include "eval/sampling.h"

namespace perigee {

namespace {

/// One document of all tokens so far; nothing carries loss.
Batch text_batch(std::vector<int32_t> const& ids) {
    Batch batch;
    batch.ids_T = ids;
    batch.targets_T.assign(ids.size(), 0);
    batch.weights_T.assign(ids.size(), 0.0f);
    batch.positions_T.resize(ids.size());
    std::iota(batch.positions_T.begin(), batch.positions_T.end(), 0);
    batch.cu_seqlens = {0, static_cast<int32_t>(ids.size())};
    return batch;
}

}  // namespace

void generate(Session& session, int64_t step, std::function<void(std::string const&)> const& sink) {
    RunOptions const& options = session.options();
    auto const tokenizer = make_tokenizer(session.files(), options.data.tokenizer);
    check_vocabulary(*tokenizer, options.model.vocab_size);
    std::vector<int32_t> ids = tokenizer->prefix();
    for (int32_t const id : tokenizer->encode_with_special(options.generate.prompt)) ids.push_back(id);
    StreamDecoder stream(*tokenizer);
    if (ids.empty()) fail(Category::config, "generate.prompt is empty: at least one token is needed to go on from");
    auto const kinds = session.kinds(step);
    Philox const random(static_cast<uint64_t>(options.seed), Purpose::generate);
    for (int64_t i = 0; i < options.generate.max_tokens; ++i) {
        if (static_cast<int64_t>(ids.size()) >= options.model.max_position_embeddings) break;
        auto const logits = session.model().next_logits(session.weights(), text_batch(ids), kinds, session.arena());
        session.arena().settle();  // the text grows, and with it what the arena must hold
        int32_t const next = sample_token(logits, tokenizer->vocab_size(), options.generate, random, i);
        if (next == tokenizer->end_of_document()) break;
        ids.push_back(next);
        sink(stream.push(next));
    }
    sink(stream.finish());
}

}  // namespace perigee
