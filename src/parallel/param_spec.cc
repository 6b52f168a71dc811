#include "parallel/param_spec.h"

#include <algorithm>

namespace perigee {

namespace {

int64_t row_length(Shape const& shape) { return shape.rank() == 2 ? shape[1] : 1; }

Shard cut_shard(ParamSpec const& spec, int tp_size, int tp_rank) {
    Shard shard = whole_shard(spec.shape);
    if (spec.cut == Cut::whole) return shard;
    int const dim = spec.cut == Cut::rows ? 0 : 1;
    PERIGEE_CHECK(dim < spec.shape.rank() && spec.shape.rank() <= 2, "`{}` {} cannot be cut by {}", spec.name,
                  spec.shape.str(), dim == 0 ? "rows" : "columns");
    int64_t const extent = spec.shape[dim];
    if (extent % tp_size != 0)
        fail(Category::config, "`{}` has {} {}, which parallel.tensor = {} does not divide", spec.name, extent,
             dim == 0 ? "rows" : "columns", tp_size);
    std::array<int64_t, 2> begin{}, size{};
    for (int i = 0; i < spec.shape.rank(); ++i) size[static_cast<size_t>(i)] = spec.shape[i];
    size[static_cast<size_t>(dim)] = extent / tp_size;
    begin[static_cast<size_t>(dim)] = tp_rank * (extent / tp_size);
    auto const rank = static_cast<size_t>(spec.shape.rank());
    shard.begin = Shape(std::span<int64_t const>(begin.data(), rank));
    shard.extent = Shape(std::span<int64_t const>(size.data(), rank));
    shard.flat_count = shard.extent.size();
    return shard;
}

}  // namespace

std::vector<Shard::Run> Shard::runs() const {
    // Dimensions after `split` are held whole, so a run covers the box's extent of `split` and everything after it.
    int split = global.rank() - 1;
    int64_t stride = 1;  // of `split` in the global tensor
    while (split > 0 && extent[split] == global[split]) stride *= global[split--];
    int64_t const run = (split >= 0 ? extent[split] : 1) * stride;
    int64_t const first = split >= 0 ? begin[split] * stride : 0;

    std::vector<Run> runs;
    for (int64_t flat = flat_begin; flat < flat_begin + flat_count;) {
        int64_t const inside = flat % run;
        int64_t const count = std::min(run - inside, flat_begin + flat_count - flat);
        int64_t index = first + inside;
        int64_t outer = flat / run;
        int64_t outer_stride = split >= 0 ? stride * global[split] : 1;
        for (int dim = split - 1; dim >= 0; --dim) {
            index += (begin[dim] + outer % extent[dim]) * outer_stride;
            outer /= extent[dim];
            outer_stride *= global[dim];
        }
        runs.push_back({.global = index, .local = flat - flat_begin, .count = count});
        flat += count;
    }
    return runs;
}

Shard whole_shard(Shape const& global) {
    std::array<int64_t, Shape::kMaxRank> const zeros{};
    return {.global = global,
            .begin = Shape(std::span(zeros.data(), static_cast<size_t>(global.rank()))),
            .extent = global,
            .flat_begin = 0,
            .flat_count = global.size()};
}

TensorPart ParamLayout::Entry::part(int64_t begin) const {
    int64_t const columns = row_length(shard.global);
    return {.begin = begin,
            .first = shard.begin[0] * columns + (local.rank() == 2 ? shard.begin[1] : 0),
            .width = row_length(local),
            .stride = columns};
}

TensorView UnitPlace::in(UnitMemory const& memory) const {
    TensorView const& unit = frozen ? memory.frozen : memory.trained;
    if (empty() || (frozen && unit.empty())) return {};
    PERIGEE_CHECK(offset + shape.size() <= unit.size(), "a tensor at {} of {} in a unit of {} elements", offset,
                  shape.str(), unit.size());
    return {unit.data + offset * size_of(unit.dtype), unit.dtype, shape};
}

ParamSplit split(std::vector<ParamSpec> specs) {
    ParamSplit parts;
    for (ParamSpec& spec : specs) (spec.frozen ? parts.frozen : parts.trained).push_back(std::move(spec));
    return parts;
}

ParamLayout::ParamLayout(std::vector<ParamSpec> specs, int tp_size, int tp_rank, int64_t unit_multiple, int units_of) {
    PERIGEE_CHECK(0 <= tp_rank && tp_rank < tp_size, "rank {} of {}", tp_rank, tp_size);
    auto const end_unit = [&] {
        size_ = (size_ + unit_multiple - 1) / unit_multiple * unit_multiple;
        if (!units_.empty()) units_.back().end = size_;
    };
    auto const begin_unit = [&] {
        end_unit();
        units_.push_back({size_, size_});
    };
    for (ParamSpec& spec : specs) {
        Shard const shard = cut_shard(spec, tp_size, tp_rank);
        if (units_.empty() || spec.unit == units()) begin_unit();
        while (units() <= spec.unit && units() < units_of) begin_unit();
        PERIGEE_CHECK(spec.unit == units() - 1, "`{}` of unit {} after unit {}", spec.name, spec.unit, units() - 1);
        bool const added = index_.emplace(spec.name, entries_.size()).second;
        PERIGEE_CHECK(added, "two parameters are named `{}`", spec.name);
        entries_.push_back({.spec = std::move(spec), .shard = shard, .local = shard.extent, .offset = size_});
        size_ += shard.extent.size();
    }
    while (units() < units_of) begin_unit();
    end_unit();
}

std::span<ParamLayout::Entry const> ParamLayout::entries_of(int unit) const {
    auto const [begin, end] = std::ranges::equal_range(entries_, unit, {}, [](Entry const& e) { return e.spec.unit; });
    return {begin, end};
}

FlatRange ParamLayout::gap(int unit) const {
    if (entries_of(unit).empty()) return {this->unit(unit).end, this->unit(unit).end};
    Entry const& last = entries_of(unit).back();
    return {last.offset + last.local.size(), this->unit(unit).end};
}

ParamLayout::Entry const& ParamLayout::entry(std::string const& name) const {
    auto const found = index_.find(name);
    PERIGEE_CHECK(found != index_.end(), "no parameter is named `{}`", name);
    return entries_[found->second];
}

int64_t ParamLayout::global_size() const {
    int64_t total = 0;
    for (Entry const& e : entries_) total += e.spec.shape.size();
    return total;
}

TensorView ParamLayout::view(TensorView flat, std::string const& name) const {
    PERIGEE_CHECK(flat.size() == size_, "a buffer of {} elements for a layout of {}", flat.size(), size_);
    FlatRange const range = unit(entry(name).spec.unit);
    return place(name).in(flat.rows(range.begin, range.end));
}

UnitPlace ParamLayout::place(std::string const& first, std::string const& last) const {
    Entry const& from = entry(first);
    Entry const& to = entry(last);
    int64_t const offset = from.offset - unit(from.spec.unit).begin;
    if (&from == &to) return {offset, from.local};
    PERIGEE_CHECK(from.spec.unit == to.spec.unit, "`{}` and `{}` are of different units", first, last);
    int64_t rows = 0;
    for (Entry const* e = &from; e <= &to; ++e) {
        PERIGEE_CHECK(e->local.rank() == from.local.rank() && row_length(e->local) == row_length(from.local),
                      "`{}` {} does not continue `{}` {}", e->spec.name, e->local.str(), first, from.local.str());
        rows += e->local[0];
    }
    PERIGEE_CHECK(rows > 0, "`{}` comes after `{}`", first, last);
    return {offset, from.local.rank() == 2 ? Shape{rows, from.local[1]} : Shape{rows}};
}

UnitPlace ModelLayouts::place(std::string const& first, std::string const& last) const {
    UnitPlace place = of(first).place(first, last);
    place.frozen = &of(first) == frozen;
    return place;
}

}  // namespace perigee
