#include "train/text_model.h"

#include "data/packing.h"

namespace perigee {

TextModel::TextModel(Session& session, std::vector<Selection> selections, int64_t capacity)
    : session_(session), selections_(std::move(selections)) {
    MeshShape const& mesh = session.mesh().shape();
    // Kernels for a few queries and many keys are yet to come to GPUs.
    if (session.ops().device().is_host() && mesh.cp == 1)
        cache_.emplace(session.ops(), session.options().model, mesh, capacity);
}

std::vector<float> TextModel::append(std::span<int32_t const> ids) {
    text_.insert(text_.end(), ids.begin(), ids.end());
    Llama& model = session_.model();
    auto logits =
        cache_ ? model.next_logits(session_.weights(), ids, selections_, *cache_, session_.arena())
               : model.next_logits(session_.weights(), unfinished_document(text_), selections_, session_.arena());
    session_.arena().settle();  // the text grows, and with it what the arena must hold
    return logits;
}

}  // namespace perigee
