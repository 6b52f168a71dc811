// The two moments of what a rank updates: on the device, or in pinned memory of the host, from where a unit's come into
// one of two slots a unit ahead of its update, and go back after it, on a lane of their own.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "device/queue.h"
#include "ops/ops.h"
#include "parallel/param_spec.h"

namespace perigee {

inline constexpr char const* kMomentsLane = "moments";

class Moments {
  public:
    struct Kept {
        DType dtype;
        bool on_host;
    };
    /// Zero moments for these ascending ranges of the flat buffer.
    Moments(ParamLayout const& layout, std::vector<FlatRange> updated, Ops& ops, Kept kept);
    Moments(Moments&&) noexcept;
    ~Moments();

    /// One part per updated range, as much of it as lies in the unit.
    struct OfUnit {
        std::vector<FlatPart> m, v;
    };
    /// The unit's moments, for work queued in the compute queue until release(unit). Starts fetching those of `next`;
    /// -1: none. Units must be needed in ascending order, each released before the next.
    OfUnit need(int unit, int next);
    void release(int unit);
    /// Starts fetching the first unit's moments from the host.
    void begin();

    /// All of them, one part per updated range. What is queued in the compute queue from now on may read and write them
    /// until the next call; on the host they are in its memory.
    std::vector<FlatPart> first() const;
    std::vector<FlatPart> second() const;

    int64_t bytes() const;       ///< of the device
    int64_t host_bytes() const;  ///< beside it

  private:
    struct Host;
    /// Elements [begin, end) of all updated ranges, one after the other, that lie in the unit.
    FlatRange packed(int unit) const;
    std::vector<FlatPart> parts(TensorView packed_values) const;
    OfUnit of_unit(int unit, TensorView m, TensorView v) const;

    ParamLayout const* layout_;
    std::vector<FlatRange> updated_;
    Ops* ops_;
    Buffer memory_m_, memory_v_;  ///< on the device: all of them, or empty
    TensorView m_, v_;            ///< of all updated elements, wherever they are
    std::unique_ptr<Host> host_;  ///< where they are there
};

}  // namespace perigee
