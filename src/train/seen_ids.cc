#include "train/seen_ids.h"

namespace perigee {

TensorView SeenIds::with(int64_t text, Sampler const& sampler) {
    auto const i = static_cast<size_t>(text);
    Shape const shape{std::ssize(is_there_), (sampler.allowed() + 31) / 32};
    if (bits_.bytes() == 0) bits_ = Buffer(ops_->device(), static_cast<size_t>(shape.size()) * sizeof(int32_t));
    TensorView const all(static_cast<std::byte*>(bits_.data()), DType::i32, shape);
    if (!is_there_[i]) ops_->upload(all.rows(text, text + 1), sampler.seen_words().data());
    is_there_[i] = true;
    return all;
}

}  // namespace perigee
