// The optimizer as a step uses it, on flat buffers: the global norm from squares of what each rank owns, added up over
// the mesh, and updates of all units.
#pragma once

#include <cmath>

#include "optim/optimizer.h"

namespace perigee::testing {

/// These ranges of a flat buffer.
inline std::vector<FlatPart> parts_of(std::vector<FlatRange> const& ranges, TensorView flat) {
    std::vector<FlatPart> parts;
    for (FlatRange const& range : ranges) parts.push_back({range, flat.rows(range.begin, range.end)});
    return parts;
}

/// The ranges that an optimizer updates.
inline std::vector<FlatPart> parts_of(AdamWOptimizer const& optimizer, TensorView flat) {
    std::vector<FlatPart> parts = optimizer.first_moment();
    for (FlatPart& part : parts) part.values = flat.rows(part.range.begin, part.range.end);
    return parts;
}

inline double global_norm(AdamWOptimizer& optimizer, TensorView grads, Mesh const& mesh) {
    double squares = 0;
    optimizer.add_squares(TensorView(&squares, {1}), parts_of(optimizer, grads));
    return std::sqrt(mesh.world().sum(squares));
}

inline void update(AdamWOptimizer& optimizer, ParamLayout const& layout, TensorView grads, double norm, double lr,
                   int64_t applied) {
    for (int unit = 0; unit < layout.units(); ++unit)
        optimizer.update(unit, parts_of(optimizer, grads), {.norm = norm, .lr = lr, .applied = applied});
}

}  // namespace perigee::testing
