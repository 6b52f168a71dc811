#include "model/kv_cache.h"

namespace perigee {

KvCache::KvCache(Ops& ops, ModelOptions const& model, MeshShape const& mesh, int64_t capacity)
    : capacity_(capacity),
      room_(capacity + mesh.tp - 1),
      kv_heads_(model.kv_heads() / mesh.tp),
      head_dim_(model.head_size()),
      dtype_(ops.compute_dtype()),
      memory_(ops.device(), static_cast<size_t>(2 * model.num_hidden_layers * room_ * kv_heads_ * head_dim_ *
                                                size_of(ops.compute_dtype()))) {}

void KvCache::set_tokens(int64_t tokens) {
    PERIGEE_CHECK(0 <= tokens && tokens <= capacity_, "{} tokens in a cache for {}", tokens, capacity_);
    tokens_ = tokens;
}

TensorView KvCache::rows(int64_t number, int64_t begin, int64_t end) const {
    int64_t const bytes = room_ * kv_heads_ * head_dim_ * size_of(dtype_);
    auto* const data = static_cast<std::byte*>(memory_.data()) + number * bytes;
    return TensorView(data, dtype_, {room_, kv_heads_, head_dim_}).rows(begin, end);
}

}  // namespace perigee
