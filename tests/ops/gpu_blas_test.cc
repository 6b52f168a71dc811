// Products of cuBLASLt on operands at any address, as parameters have that follow each other without gaps.
#include <fmt/format.h>

#include "ops/gpu_case.h"

namespace perigee::testing {
namespace {

using GpuMatMul = GpuTest;

/// A matrix that begins `skipped` elements after an aligned address.
TensorView matrix(Lab& lab, Shape const& shape, int64_t skipped, uint64_t seed) {
    TensorView const all = lab.compute({skipped + shape.size()}, random_bf16(skipped + shape.size(), seed));
    return {static_cast<std::byte*>(all.data) + skipped * size_of(all.dtype), all.dtype, shape};
}

TEST_F(GpuMatMul, TakesOperandsAtAnyAddress) {
    for (int64_t const skipped : {1, 2, 4})
        for (bool const accumulate : {false, true}) {
            SCOPED_TRACE(fmt::format("{} elements after an aligned address, accumulate {}", skipped, accumulate));
            compare([&](Lab& lab) {
                TensorView const x = matrix(lab, {136, 64}, skipped, 51), w = matrix(lab, {296, 64}, skipped, 52);
                TensorView const y = matrix(lab, {136, 296}, skipped, 53);
                lab.ops.matmul({.c = y, .a = x, .b = w, .transpose_b = true, .accumulate = accumulate});
                lab.result("y", y);
            });
        }
}

}  // namespace
}  // namespace perigee::testing
