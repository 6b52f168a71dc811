#include "train/snapshot.h"

#include <algorithm>

namespace perigee {

FlatRange whole_range(ParamLayout const& layout) { return {0, layout.size()}; }

FlatRange share(ParamLayout const& layout, int rank, int size) {
    return {layout.size() * rank / size, layout.size() * (rank + 1) / size};
}

std::vector<StoredTensor> stored_tensors(ParamLayout const& layout, TensorView flat, std::string const& prefix,
                                         FlatRange range) {
    std::vector<StoredTensor> parts;
    for (ParamLayout::Entry const& entry : layout.entries()) {
        int64_t const begin = std::max(range.first, entry.offset);
        int64_t const end = std::min(range.second, entry.offset + entry.local.size());
        if (begin >= end) continue;
        StoredTensor part{prefix + entry.spec.name, entry.shard, flat.rows(begin, end)};
        part.shard.flat_begin = begin - entry.offset;
        part.shard.flat_count = end - begin;
        parts.push_back(std::move(part));
    }
    return parts;
}

}  // namespace perigee
