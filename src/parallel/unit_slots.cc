#include "parallel/unit_slots.h"

#include <algorithm>

namespace perigee {

UnitSlots::Pool UnitSlots::pool(int unit) const {
    if (unit > 0 && unit + 1 < layout_->units()) return Pool::blocks;
    return unit == 0 || ends_take_turns_ ? Pool::first : Pool::last;
}

int64_t UnitSlots::capacity(Pool of) const {
    int64_t most = 0;
    for (int unit = 0; unit < layout_->units(); ++unit)
        if (pool(unit) == of) most = std::max(most, layout_->unit(unit).size());
    return most;
}

UnitSlots::Slot* UnitSlots::find(int unit) {
    auto const found = std::ranges::find_if(slots_, [unit](auto const& entry) { return entry.second.unit == unit; });
    return found == slots_.end() ? nullptr : &found->second;
}

UnitSlots::Slot& UnitSlots::take(int unit) {
    constexpr int kTurns = 2;
    Pool const of = pool(unit);
    auto const of_pool = [of](auto const& entry) { return entry.first == of; };
    auto found =
        std::ranges::find_if(slots_, [&](auto const& entry) { return of_pool(entry) && entry.second.users == 0; });
    if (found == slots_.end() || (of == Pool::blocks && std::ranges::count_if(slots_, of_pool) < kTurns)) {
        int64_t const elements = capacity(of);
        Slot slot;
        slot.memory = comm_->allocate(*device_, static_cast<size_t>(elements * size_of(dtype_)));
        slot.view = {static_cast<std::byte*>(slot.memory.data()), dtype_, {elements}};
        found = slots_.insert(slots_.end(), {of, std::move(slot)});
    }
    slots_.splice(slots_.end(), slots_, found);
    Slot& slot = slots_.back().second;
    for (auto& [pool_of, other] : slots_)
        if (other.unit == unit) other.unit = -1;  // of a pass that did not end
    slot.unit = unit;
    return slot;
}

void UnitSlots::forget() {
    for (auto& [of, slot] : slots_) slot.unit = -1;
}

int64_t UnitSlots::bytes() const {
    int64_t sum = 0;
    for (auto const& [of, slot] : slots_) sum += slot.view.bytes();
    return sum;
}

bool UnitSlots::holds(void const* address) const {
    auto const* const place = static_cast<std::byte const*>(address);
    return std::ranges::any_of(slots_, [place](auto const& entry) {
        TensorView const& view = entry.second.view;
        return view.data <= place && place < view.data + view.bytes();
    });
}

}  // namespace perigee
