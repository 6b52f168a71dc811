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
    // Kernels for a few queries and many keys are yet to come to GPUs.
    if (!ops.device().is_host() || mesh.cp > 1 || (cache_ && tokens <= cache_->capacity())) return;
    ModelOptions const& model = session_.options().model;
    KvCache larger(ops, model, mesh, std::max(tokens, cache_ ? 2 * cache_->capacity() : 0));
    int64_t const kept = cache_ ? cache_->tokens() : 0;
    for (int64_t layer = 0; layer < model.num_hidden_layers && kept > 0; ++layer) {
        ops.copy(larger.keys(layer, 0, kept), cache_->keys(layer, 0, kept));
        ops.copy(larger.values(layer, 0, kept), cache_->values(layer, 0, kept));
    }
    larger.set_tokens(kept);
    cache_ = std::move(larger);
}

std::vector<float> TextModel::append(std::span<int32_t const> ids) {
    text_.insert(text_.end(), ids.begin(), ids.end());
    reserve(std::ssize(text_));
    Llama& model = session_.model();
    auto logits =
        cache_ ? model.next_logits(session_.weights(), ids, selections_, *cache_, session_.arena())
               : model.next_logits(session_.weights(), unfinished_document(text_), selections_, session_.arena());
    session_.arena().settle();  // the text grows, and with it what the arena must hold
    return logits;
}

}  // namespace perigee
