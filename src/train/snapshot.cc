#include "train/snapshot.h"

#include <algorithm>

namespace perigee {

namespace {

void append_tensors(std::vector<StoredTensor>& stored, ParamLayout const& layout, FlatPart const& part,
                    std::string const& prefix, FlatRange range) {
    for (ParamLayout::Entry const& entry : layout.entries()) {
        auto const [begin, end] = intersection(range, {entry.offset, entry.offset + entry.local.size()});
        if (begin >= end) continue;
        StoredTensor tensor{prefix + entry.spec.name, entry.shard, part.of({begin, end})};
        tensor.shard.flat_begin = begin - entry.offset;
        tensor.shard.flat_count = end - begin;
        stored.push_back(std::move(tensor));
    }
}

}  // namespace

std::vector<StoredTensor> stored_tensors(ParamLayout const& layout, std::vector<FlatPart> const& parts,
                                         std::string const& prefix, std::vector<FlatRange> const& ranges) {
    std::vector<StoredTensor> stored;
    for (FlatPart const& part : parts) {
        for (FlatRange const& range : ranges) {
            FlatRange const both = intersection(part.range, range);
            if (both.size() > 0) append_tensors(stored, layout, part, prefix, both);
        }
    }
    return stored;
}

}  // namespace perigee
