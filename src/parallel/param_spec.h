// The one list of parameters that model, optimizer, checkpoint and conversion all read: global name, global shape, how
// tensor parallelism cuts it, how it is initialised, whether weight decay applies. ParamLayout places a rank's parts of
// all of them in one flat buffer, in list order, so that neighbours (q, k and v; gate and up) can be used as one
// matrix. Parameters that are used together form a unit (the embedding, a block, the head): what is gathered, summed
// and updated at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensor/tensor.h"

namespace perigee {

enum class Cut { whole, rows, columns };  ///< whole: every tp rank holds all of it
enum class Init { normal, ones, zeros };

struct ParamSpec {
    std::string name;  ///< Hugging Face's, e.g. "model.layers.0.self_attn.q_proj.weight"
    Shape shape;       ///< global
    Cut cut = Cut::whole;
    Init init = Init::normal;
    double stddev = 0.02;
    bool decay = true;
    int unit = 0;         ///< starts at 0 and never decreases along the list
    bool frozen = false;  ///< not trained: no gradient, no optimizer state
};

/// A list of parameters split in two. Each part keeps the order.
struct ParamSplit {
    std::vector<ParamSpec> trained, frozen;
};
ParamSplit split(std::vector<ParamSpec> specs);

/// A box of a global tensor, or a flat range of that box: what one rank holds or one file stores.
struct Shard {
    Shape global;
    Shape begin;             ///< first index in each dimension
    Shape extent;            ///< size in each dimension
    int64_t flat_begin = 0;  ///< range of the box's elements in row-major order
    int64_t flat_count = 0;

    /// Runs of elements that are contiguous both in the global tensor and in the shard, in order.
    struct Run {
        int64_t global;  ///< linear index in the global tensor
        int64_t local;   ///< linear index in the shard, counted from flat_begin
        int64_t count;
    };
    std::vector<Run> runs() const;
};
Shard whole_shard(Shape const& global);

/// Elements [begin, end) of a flat parameter buffer.
struct FlatRange {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t size() const { return end - begin; }
    bool operator==(FlatRange const&) const = default;
};

/// What both have; of no or negative size where they do not meet.
inline FlatRange intersection(FlatRange a, FlatRange b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

inline int64_t total_size(std::vector<FlatRange> const& ranges) {
    int64_t elements = 0;
    for (FlatRange const& range : ranges) elements += range.size();
    return elements;
}

/// The values of a range of a flat buffer.
struct FlatPart {
    FlatRange range;
    TensorView values;
    /// Those of a range inside.
    TensorView of(FlatRange part) const { return values.rows(part.begin - range.begin, part.end - range.begin); }
};

/// Memory of a unit's trained and frozen tensors. For gradients `frozen` is empty.
struct UnitMemory {
    UnitMemory() = default;
    UnitMemory(TensorView of_trained, TensorView of_frozen = {}) : trained(of_trained), frozen(of_frozen) {}
    TensorView trained, frozen;
};

/// Where a tensor lies in the memory of its unit. Empty for one that a model does not have.
struct UnitPlace {
    int64_t offset = 0;  ///< elements from the unit's begin
    Shape shape = {0};
    bool frozen = false;
    bool empty() const { return shape.size() == 0; }
    /// The tensor, or an empty view.
    TensorView in(UnitMemory const& unit) const;
};

class ParamLayout {
  public:
    /// The part of each tensor held by rank `tp_rank` of `tp_size`; sizes must divide (Category::config otherwise).
    /// Each unit takes a multiple of `unit_multiple` elements; padding follows its last tensor. `units` counts
    /// the units, empty ones included; 0 takes the units that the list names.
    ParamLayout(std::vector<ParamSpec> specs, int tp_size, int tp_rank, int64_t unit_multiple = 1, int units = 0);

    struct Entry {
        ParamSpec spec;
        Shard shard;     ///< this rank's box
        Shape local;     ///< its shape
        int64_t offset;  ///< first element in the flat buffer

        /// Of the elements from `begin` of this rank's box on.
        TensorPart part(int64_t begin) const;
    };
    std::vector<Entry> const& entries() const { return entries_; }
    Entry const& entry(std::string const& name) const;  ///< Category::internal for an unknown name
    bool has(std::string const& name) const { return index_.contains(name); }
    int64_t size() const { return size_; }  ///< elements of the flat buffer
    FlatRange whole() const { return {0, size_}; }
    int units() const { return static_cast<int>(units_.size()); }
    FlatRange unit(int i) const { return units_.at(static_cast<size_t>(i)); }
    /// Elements that belong to no tensor, after the last one of the unit.
    FlatRange gap(int unit) const;
    std::span<Entry const> entries_of(int unit) const;
    int64_t global_size() const;  ///< parameters of the whole model

    /// The named tensor inside a flat buffer of size() elements.
    TensorView view(TensorView flat, std::string const& name) const;
    /// Neighbouring tensors first...last of equal row length, of one unit, as one matrix.
    UnitPlace place(std::string const& first, std::string const& last) const;
    UnitPlace place(std::string const& name) const { return place(name, name); }

  private:
    std::vector<Entry> entries_;
    std::vector<FlatRange> units_;
    std::unordered_map<std::string, size_t> index_;
    int64_t size_ = 0;
};

/// Layouts of a model's trained and frozen parameters, with the same units. `frozen` is null if nothing is frozen.
struct ModelLayouts {
    ModelLayouts(ParamLayout const& of_trained, ParamLayout const* of_frozen = nullptr)
        : trained(of_trained), frozen(of_frozen) {}
    ParamLayout const& trained;
    ParamLayout const* frozen;

    bool has(std::string const& name) const { return trained.has(name) || (frozen != nullptr && frozen->has(name)); }
    ParamLayout const& of(std::string const& name) const {
        return frozen != nullptr && !trained.has(name) ? *frozen : trained;
    }
    /// As ParamLayout::place.
    UnitPlace place(std::string const& first, std::string const& last) const;
    UnitPlace place(std::string const& name) const { return place(name, name); }
};

}  // namespace perigee
