// What the kernels that the current GPU runs were compiled for. It may be less than the GPU can do: where a program
// brings no code for it, the driver compiles PTX for an older one, without what the older one lacks.
#pragma once

namespace perigee::kernels {

/// In ascending order: each has what those before it have.
enum class BuiltFor {
    ampere,  ///< compute capability 8.0: what every kernel needs
    early,   ///< 9.0 on: kernels that begin before the one before them has ended
    hopper,  ///< 9.0a: also products by a warpgroup
};

/// Less, too, where PERIGEE_SHARED_MEMORY_KIB takes away what kernels for Hopper count on. Runs nothing. Throws
/// Category::internal where the program has no kernels for this GPU.
BuiltFor built_for();

}  // namespace perigee::kernels
