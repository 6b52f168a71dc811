#include "train/text_model.h"

#include <algorithm>

#include "data/packing.h"

namespace perigee {

TextModel::TextModel(Session& session, std::vector<Selection> selections)
    : session_(session), selections_(std::move(selections)) {
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
        return model.next_logits(session_.weights(), unfinished_document(text_), selections_, session_.arena());
    if (ids.size() == 1) return model.decode(session_.weights(), ids, selections_, *cache_, session_.arena());
    return model.next_logits(session_.weights(), ids, selections_, *cache_, session_.arena());
}

std::vector<float> TextModel::append(std::span<int32_t const> ids) {
    constexpr size_t kChunk = 8192;  // of a prompt, at a time
    std::vector<float> logits;
    for (size_t begin = 0; begin < ids.size(); begin += kChunk) {
        auto const chunk = ids.subspan(begin, std::min(kChunk, ids.size() - begin));
        text_.insert(text_.end(), chunk.begin(), chunk.end());
        reserve(std::ssize(text_));
        logits = next_logits(chunk);
        session_.arena().settle();  // the text grows, and with it what the arena must hold
    }
    return logits;
}

}  // namespace perigee
