// Small checkpoints for tests: random tensors, ways to cut them, and saving or reading them back by parts.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/philox.h"
#include "checkpoint/checkpoint.h"

namespace perigee::testing {

inline constexpr char kRoot[] = "/run/checkpoints";  ///< of a run that is in memory alone

/// Whole tensors by name, in memory.
struct Tensors {
    struct Tensor {
        DType dtype;
        Shape shape;
        std::vector<std::byte> bytes;
        bool operator==(Tensor const&) const = default;
    };
    std::map<std::string, Tensor> all;
    bool operator==(Tensors const&) const = default;

    void add(std::string const& name, DType dtype, Shape shape, uint64_t seed) {
        Philox const random(seed, Purpose::mock_data, hash_name(name));
        std::vector<std::byte> bytes(static_cast<size_t>(shape.size() * size_of(dtype)));
        for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(random.u64(i));
        all[name] = {dtype, shape, std::move(bytes)};
    }
    /// The same names and shapes, other values.
    Tensors poisoned() const {
        Tensors copy = *this;
        for (auto& [name, tensor] : copy.all) std::fill(tensor.bytes.begin(), tensor.bytes.end(), std::byte{0xff});
        return copy;
    }
};

inline Tensors example_tensors(uint64_t seed) {
    Tensors tensors;
    tensors.add("model.norm.weight", DType::f32, {8}, seed);
    tensors.add("optimizer.m/model.norm.weight", DType::f32, {8}, seed);
    tensors.add("model.q.weight", DType::bf16, {6, 4}, seed);
    return tensors;
}

inline RunState example_state(int64_t step) {
    return {.step = step,
            .consumed_samples = 7 * step,
            .consumed_tokens = 4096 * step,
            .applied_updates = step / 2,
            .skipped_in_a_row = 1,
            .seed = ~uint64_t{5},
            .info = {{"layout", "dp 1"}, {"gpu", "none \"quoted\" \xc3\xa9"}}};
}

/// A piece of a tensor in its own memory.
struct Part {
    std::string name;
    DType dtype;
    Shard shard;
    std::vector<std::byte> bytes;
};

inline std::vector<StoredTensor> views(std::vector<Part>& parts) {
    std::vector<StoredTensor> stored;
    for (Part& p : parts) {
        stored.push_back({p.name, p.shard, TensorView(p.bytes.data(), p.dtype, Shape{p.shard.flat_count})});
    }
    return stored;
}

/// Element by element and without Shard::runs(): the linear global index of element `flat` of a box.
inline int64_t global_index(Shard const& shard, int64_t flat) {
    int64_t index = 0, stride = 1;
    for (int dim = shard.global.rank() - 1; dim >= 0; --dim) {
        index += (shard.begin[dim] + flat % shard.extent[dim]) * stride;
        flat /= shard.extent[dim];
        stride *= shard.global[dim];
    }
    return index;
}

inline Part cut(Tensors const& tensors, std::string const& name, Shard const& shard) {
    auto const& tensor = tensors.all.at(name);
    auto const size = static_cast<size_t>(size_of(tensor.dtype));
    Part part{name, tensor.dtype, shard, std::vector<std::byte>(static_cast<size_t>(shard.flat_count) * size)};
    for (int64_t i = 0; i < shard.flat_count; ++i) {
        auto const from = static_cast<size_t>(global_index(shard, shard.flat_begin + i)) * size;
        std::copy_n(&tensor.bytes[from], size, &part.bytes[static_cast<size_t>(i) * size]);
    }
    return part;
}

inline std::vector<Part> whole_parts(Tensors const& tensors) {
    std::vector<Part> parts;
    for (auto const& [name, tensor] : tensors.all) parts.push_back(cut(tensors, name, whole_shard(tensor.shape)));
    return parts;
}

/// Saves whole tensors as one rank would.
inline void save(FileSystem& files, Path const& root, int64_t step, Tensors const& tensors, Retention keep = {}) {
    auto parts = whole_parts(tensors);
    save_checkpoint(files, *make_single_host_comm(), root, example_state(step), views(parts), keep);
}

/// Reads whole tensors of the names and shapes of `like`.
inline Tensors load(Checkpoint const& checkpoint, Tensors const& like) {
    Tensors found = like.poisoned();
    std::vector<StoredTensor> wanted;
    for (auto& [name, tensor] : found.all) {
        wanted.push_back(
            {name, whole_shard(tensor.shape), TensorView(tensor.bytes.data(), tensor.dtype, tensor.shape)});
    }
    checkpoint.read(wanted);
    return found;
}

template <class Action>
std::string checkpoint_error(Action&& action) {
    try {
        action();
    } catch (Error const& e) {
        return e.category() == Category::checkpoint ? e.what() : std::string("another category: ") + e.what();
    }
    return "nothing was thrown";
}

}  // namespace perigee::testing
