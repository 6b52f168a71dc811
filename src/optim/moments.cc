#include "optim/moments.h"

#include <algorithm>
#include <utility>

namespace perigee {

namespace {

TensorView flat(void* memory, DType dtype, int64_t elements) {
    return {static_cast<std::byte*>(memory), dtype, {elements}};
}

}  // namespace

/// Moments in memory of the host, and the slots of the device that they pass through. The lane keeps an order: a slot
/// is filled again after what it held has gone back.
struct Moments::Host {
    struct Slot {
        Buffer memory;
        TensorView m, v;
        int unit = -1;  ///< whose moments are there, or on their way
        Event there = {};
    };

    Host(Ops& ops, DType type, int64_t all, int64_t largest)
        : device(ops.device()), dtype(type), m(device, bytes(all)), v(device, bytes(all)) {
        for (Slot& slot : slots) {
            slot.memory = Buffer(device, 2 * bytes(largest));
            slot.m = flat(slot.memory.data(), dtype, largest);
            slot.v = flat(static_cast<std::byte*>(slot.memory.data()) + bytes(largest), dtype, largest);
        }
        ops.fill_zero(slots[0].m);
        for (int64_t begin = 0; begin < all; begin += largest) {
            FlatRange const part{begin, std::min(begin + largest, all)};
            copy_to_host(part, slots[0].m, slots[0].m);
        }
    }

    size_t bytes(int64_t elements) const { return static_cast<size_t>(elements * size_of(dtype)); }
    Queue& lane() const { return device.lane(kMomentsLane, Priority::low); }
    std::byte* at(HostBuffer const& memory, int64_t element) const {
        return static_cast<std::byte*>(memory.data()) + bytes(element);
    }

    void fetch(Slot& slot, int unit, FlatRange part) {
        if (std::exchange(used_elsewhere, false)) lane().wait(device.queue().record());
        slot.unit = unit;
        lane().copy(slot.m.data, at(m, part.begin), bytes(part.size()));
        lane().copy(slot.v.data, at(v, part.begin), bytes(part.size()));
        slot.there = guard(part, slot.m, slot.v);
    }
    /// After all that is queued in the compute queue now.
    void copy_to_host(FlatRange part, TensorView from_m, TensorView from_v) {
        lane().wait(device.queue().record());
        lane().copy(at(m, part.begin), from_m.data, bytes(part.size()));
        lane().copy(at(v, part.begin), from_v.data, bytes(part.size()));
        guard(part, from_m, from_v);
    }
    /// Nobody frees what the lane works on.
    Event guard(FlatRange part, TensorView slot_m, TensorView slot_v) {
        Event const done = lane().record();
        for (void const* memory :
             {static_cast<void const*>(at(m, part.begin)), static_cast<void const*>(at(v, part.begin)),
              static_cast<void const*>(slot_m.data), static_cast<void const*>(slot_v.data)})
            device.in_flight().add(memory, bytes(part.size()), done);
        return done;
    }
    /// The compute queue may use all of it, and what slots hold is of no use.
    void use_elsewhere() {
        device.queue().wait(lane().record());
        for (Slot& slot : slots) slot.unit = -1;
        used_elsewhere = true;
    }

    Device& device;
    DType dtype;
    HostBuffer m, v;
    std::array<Slot, 2> slots;
    bool used_elsewhere = false;
};

Moments::Moments(ParamLayout const& layout, std::vector<FlatRange> updated, Ops& ops, Kept kept)
    : layout_(&layout), updated_(std::move(updated)), ops_(&ops) {
    int64_t const all = total_size(updated_);
    if (kept.on_host) {
        int64_t largest = 1;
        for (int unit = 0; unit < layout.units(); ++unit) largest = std::max(largest, packed(unit).size());
        host_ = std::make_unique<Host>(ops, kept.dtype, all, largest);
        m_ = flat(host_->m.data(), host_->dtype, all), v_ = flat(host_->v.data(), host_->dtype, all);
        return;
    }
    auto const bytes = static_cast<size_t>(all * size_of(kept.dtype));
    memory_m_ = Buffer(ops.device(), bytes), memory_v_ = Buffer(ops.device(), bytes);
    m_ = flat(memory_m_.data(), kept.dtype, all), v_ = flat(memory_v_.data(), kept.dtype, all);
    ops.fill_zero(m_);
    ops.fill_zero(v_);
}

Moments::Moments(Moments&&) noexcept = default;
Moments::~Moments() = default;

FlatRange Moments::packed(int unit) const {
    FlatRange const range = layout_->unit(unit);
    int64_t before = 0, inside = 0;
    for (FlatRange const& part : updated_) {
        inside += std::max<int64_t>(intersection(part, range).size(), 0);
        before += std::max<int64_t>(std::min(part.end, range.begin) - part.begin, 0);
    }
    return {before, before + inside};
}

std::vector<FlatPart> Moments::parts(TensorView packed_values) const {
    std::vector<FlatPart> parts;
    int64_t before = 0;
    for (FlatRange const& range : updated_) {
        parts.push_back({range, packed_values.rows(before, before + range.size())});
        before += range.size();
    }
    return parts;
}

/// From the unit's own elements, one after the other.
Moments::OfUnit Moments::of_unit(int unit, TensorView m, TensorView v) const {
    OfUnit of;
    int64_t before = 0;
    for (FlatRange const& part : updated_) {
        FlatRange both = intersection(part, layout_->unit(unit));
        if (both.size() < 0) both = {part.begin, part.begin};
        int64_t const end = before + both.size();
        of.m.push_back({both, m.rows(before, end)});
        of.v.push_back({both, v.rows(before, end)});
        before = end;
    }
    return of;
}

Moments::OfUnit Moments::need(int unit, int next) {
    FlatRange const part = packed(unit);
    if (!host_) return of_unit(unit, m_.rows(part.begin, part.end), v_.rows(part.begin, part.end));
    for (int const wanted : {unit, next})
        if (Host::Slot& slot = host_->slots[static_cast<size_t>(wanted & 1)]; wanted >= 0 && slot.unit != wanted)
            host_->fetch(slot, wanted, packed(wanted));
    Host::Slot& slot = host_->slots[static_cast<size_t>(unit & 1)];
    ops_->device().queue().wait(std::exchange(slot.there, {}));
    return of_unit(unit, slot.m, slot.v);
}

void Moments::release(int unit) {
    if (!host_) return;
    Host::Slot& slot = host_->slots[static_cast<size_t>(unit & 1)];
    host_->copy_to_host(packed(unit), slot.m, slot.v);
    slot.unit = -1;
}

void Moments::begin() {
    if (host_ && host_->slots[0].unit != 0) host_->fetch(host_->slots[0], 0, packed(0));
}

std::vector<FlatPart> Moments::first() const {
    if (host_) host_->use_elsewhere();
    return parts(m_);
}

std::vector<FlatPart> Moments::second() const {
    if (host_) host_->use_elsewhere();
    return parts(v_);
}

int64_t Moments::bytes() const {
    if (!host_) return m_.bytes() + v_.bytes();
    return static_cast<int64_t>(host_->slots[0].memory.bytes() + host_->slots[1].memory.bytes());
}

int64_t Moments::host_bytes() const { return host_ ? m_.bytes() + v_.bytes() : 0; }

}  // namespace perigee
