#include "train/text_model.h"

#include <algorithm>

#include "data/packing.h"

namespace perigee {

std::vector<float> read_prompt(Session& session, std::vector<Selection> const& selections, KvCache& cache, int64_t text,
                               std::span<int32_t const> ids, std::function<void()> const& before_pass) {
    constexpr size_t kChunk = 8192;  // tokens in a pass
    std::vector<float> logits;
    for (size_t begin = 0; begin < ids.size(); begin += kChunk) {
        before_pass();
        logits = session.model().next_logits(session.model_weights(),
                                             ids.subspan(begin, std::min(kChunk, ids.size() - begin)), selections,
                                             cache, session.arena(), text);
        session.arena().settle();
    }
    return logits;
}

TextModel::TextModel(Session& session, std::vector<Selection> selections)
    : session_(session), selections_(std::move(selections)), seen_(session.ops(), 1) {
    constexpr int64_t kFirstTokens = 128;
    reserve(kFirstTokens);
}

void TextModel::reserve(int64_t tokens) {
    MeshShape const& mesh = session_.mesh().shape();
    Ops& ops = session_.ops();
    ModelOptions const& model = session_.options().model;
    if (mesh.cp > 1 || !KvCache::serves(ops, model) || (cache_ && tokens <= cache_->capacity())) return;
    KvCache larger(
        ops, model, mesh,
        {.tokens = std::max(tokens, cache_ ? 2 * cache_->capacity() : 0), .block_size = block_size_of(selections_)});
    if (cache_) larger.take_over(*cache_);
    cache_ = std::move(larger);
}

std::vector<float> TextModel::next_logits(std::span<int32_t const> ids) {
    Llama& model = session_.model();
    if (!cache_)
        return model.next_logits(session_.model_weights(), unfinished_document(text_), selections_, session_.arena());
    if (ids.size() == 1) return model.decode(session_.model_weights(), ids, selections_, *cache_, session_.arena());
    return read_prompt(session_, selections_, *cache_, 0, ids);
}

void TextModel::keep(int64_t tokens) {
    PERIGEE_CHECK(0 <= tokens && tokens <= std::ssize(text_), "{} tokens of {}", tokens, text_.size());
    text_.resize(static_cast<size_t>(tokens));
    if (cache_) cache_->set_tokens(tokens);
}

std::vector<float> TextModel::append(std::span<int32_t const> ids) {
    text_.insert(text_.end(), ids.begin(), ids.end());
    reserve(std::ssize(text_));
    auto logits = next_logits(ids);
    session_.arena().settle();  // the text grows, and with it what the arena must hold
    return logits;
}

int32_t TextModel::draw(std::span<int32_t const> ids, Sampler& sampler) {
    if (!cache_ || ids.size() != 1 || session_.mesh().shape().tp > 1) {
        seen_.forget(0);
        return sampler.draw(append(ids));
    }
    text_.push_back(ids[0]);
    reserve(std::ssize(text_));
    DrawRule const rule = sampler.next_rule();
    TokenDraws draws{.rules = {&rule, 1}, .allowed = sampler.allowed(), .ahead = !session_.ops().device().is_host()};
    if (rule.index == 0) seen_.forget(0);  // the previous sampler's
    if (sampler.penalises()) draws.seen_SW = seen_.with(0, sampler);
    int32_t const id =
        session_.model().decode(session_.model_weights(), ids, selections_, *cache_, session_.arena(), draws).front();
    session_.arena().settle();
    sampler.take(id);
    return id;
}

}  // namespace perigee
