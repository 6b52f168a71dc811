// Memory in which units of a model take turns: the gathered weights of two blocks, say, whatever the number of blocks.
#pragma once

#include <list>

#include "comm/comm.h"
#include "parallel/param_spec.h"

namespace perigee {

class UnitSlots {
  public:
    struct Slot {
        Buffer memory;
        TensorView view;  ///< all elements of the slot
        int unit = -1;    ///< what it holds
        int users = 0;    ///< while there are any, it keeps its unit
        Event done;       ///< of the work of the last user
    };

    /// `ends_take_turns`: the first and the last unit share a slot where they are not used at once.
    /// `comm`: whose collectives fill or read them.
    UnitSlots(ParamLayout const& layout, Comm& comm, Device& device, DType dtype, bool ends_take_turns)
        : layout_(&layout), comm_(&comm), device_(&device), dtype_(dtype), ends_take_turns_(ends_take_turns) {}

    /// The slot that holds this unit, or null.
    Slot* find(int unit);
    /// A slot without users for a unit that none holds. Blocks have two, which take turns. Work of its last user may
    /// still be under way: wait for its `done`.
    Slot& take(int unit);
    /// No slot holds anything any more.
    void forget();
    int64_t bytes() const;  ///< taken so far: slots are made when they are first needed
    bool holds(void const* address) const;

  private:
    enum class Pool { blocks, first, last };
    Pool pool(int unit) const;
    int64_t capacity(Pool pool) const;

    ParamLayout const* layout_;
    Comm* comm_;
    Device* device_;
    DType dtype_;
    bool ends_take_turns_;
    std::list<std::pair<Pool, Slot>> slots_;  ///< the one used longest ago first
};

}  // namespace perigee
