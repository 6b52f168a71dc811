// Resharding: wanted parts and stored pieces are both lists of runs of the global tensor, so that any layout is read by
// intersecting two such lists.
#include <algorithm>
#include <cstring>

#include "checkpoint/checkpoint.h"
#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "io/tensor_file.h"

namespace perigee {

namespace {

/// Neighbouring copies are read together as far as they lie within this many bytes of a file.
constexpr int64_t kWindowBytes = int64_t{1} << 20;

/// Elements to take from a dataset and where they go in the part.
struct Copy {
    int64_t from, to, count;
};

/// Both lists rise in the global index. So do `from` and `to` of the result.
std::vector<Copy> overlap(std::vector<Shard::Run> const& stored, std::vector<Shard::Run> const& wanted) {
    std::vector<Copy> copies;
    if (stored.empty()) return copies;
    auto w = std::partition_point(wanted.begin(), wanted.end(), [&](Shard::Run const& run) {
        return run.global + run.count <= stored.front().global;
    });
    for (auto s = stored.begin(); s != stored.end() && w != wanted.end();) {
        int64_t const begin = std::max(s->global, w->global);
        int64_t const stored_end = s->global + s->count, wanted_end = w->global + w->count;
        int64_t const end = std::min(stored_end, wanted_end);
        if (begin < end) copies.push_back({s->local + begin - s->global, w->local + begin - w->global, end - begin});
        if (stored_end <= wanted_end) ++s;
        if (wanted_end <= stored_end) ++w;
    }
    return copies;
}

void read_copies(TensorFileReader const& reader, std::string const& dataset, std::vector<Copy> const& copies,
                 TensorView values, std::vector<std::byte>& buffer) {
    int64_t const size = size_of(values.dtype);
    for (size_t i = 0; i < copies.size();) {
        size_t end = i + 1;
        while (end < copies.size() && (copies[end].from + copies[end].count - copies[i].from) * size <= kWindowBytes) {
            ++end;
        }
        if (end == i + 1) {
            reader.read_range(dataset, copies[i].from,
                              {values.data + copies[i].to * size, values.dtype, Shape{copies[i].count}});
        } else {
            int64_t const first = copies[i].from;
            int64_t const count = copies[end - 1].from + copies[end - 1].count - first;
            buffer.resize(static_cast<size_t>(count * size));
            reader.read_range(dataset, first, {buffer.data(), values.dtype, Shape{count}});
            for (size_t c = i; c < end; ++c) {
                std::memcpy(values.data + copies[c].to * size, buffer.data() + (copies[c].from - first) * size,
                            static_cast<size_t>(copies[c].count * size));
            }
        }
        i = end;
    }
}

struct Wanted {
    TensorView values;
    Manifest::Tensor const* tensor;
    std::vector<Shard::Run> runs;
};

Wanted check_wanted(StoredTensor const& part, Manifest const& manifest, Path const& folder) {
    auto const found = manifest.tensors.find(part.name);
    if (found == manifest.tensors.end()) {
        fail(Category::checkpoint, "{} has no tensor `{}`", folder.string(), part.name);
    }
    Manifest::Tensor const& tensor = found->second;
    if (tensor.shape != part.shard.global || tensor.dtype != part.values.dtype) {
        fail(Category::checkpoint, "{}: tensor `{}` is {} {}; {} {} was expected", folder.string(), part.name,
             to_string(tensor.dtype), tensor.shape.str(), to_string(part.values.dtype), part.shard.global.str());
    }
    PERIGEE_CHECK(part.values.size() == part.shard.flat_count, "`{}` takes {} of {} elements", part.name,
                  part.values.size(), part.shard.flat_count);
    return {part.values, &tensor, part.shard.runs()};
}

}  // namespace

std::optional<DType> Checkpoint::dtype(std::string const& name) const {
    auto const found = manifest_->tensors.find(name);
    return found == manifest_->tensors.end() ? std::nullopt : std::optional(found->second.dtype);
}

void Checkpoint::read(std::vector<StoredTensor> const& parts) const {
    std::vector<Wanted> wanted;
    for (StoredTensor const& part : parts) wanted.push_back(check_wanted(part, *manifest_, folder_));
    std::vector<std::byte> buffer;
    // By file, so that each is opened once and only one is open at a time.
    for (size_t file = 0; file < manifest_->files.size(); ++file) {
        std::unique_ptr<TensorFileReader> reader;
        for (Wanted const& want : wanted) {
            for (Manifest::Piece const& piece : want.tensor->pieces) {
                if (piece.file != file) continue;
                auto const copies = overlap(piece.shard.runs(), want.runs);
                if (copies.empty()) continue;
                if (!reader) {
                    Path const path = folder_ / manifest_->files[file].name;
                    if (!files_->exists(folder_)) fail_removed(folder_);  // it was there when it was verified
                    reader = open_tensor_file(*files_, path, Category::checkpoint);
                }
                if (int64_t const stored = reader->info(piece.dataset).shape.size(); stored != piece.shard.flat_count) {
                    fail(Category::checkpoint, "{}: `{}` in {} has {} elements; the manifest says {}", folder_.string(),
                         piece.dataset, manifest_->files[file].name, stored, piece.shard.flat_count);
                }
                read_copies(*reader, piece.dataset, copies, want.values, buffer);
            }
        }
    }
}

}  // namespace perigee
