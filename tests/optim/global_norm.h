// The global gradient norm as a step finds it: squares of what each rank owns, added up over the mesh.
#pragma once

#include <cmath>

#include "optim/optimizer.h"

namespace perigee::testing {

inline double global_norm(AdamWOptimizer& optimizer, TensorView grads, Mesh const& mesh) {
    double squares = 0;
    optimizer.add_squares(TensorView(&squares, {1}), grads);
    return std::sqrt(mesh.world().sum(squares));
}

}  // namespace perigee::testing
