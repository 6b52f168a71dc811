#include "kernels/hopper/tensor_map.h"

#include <algorithm>

#include "base/error.h"
#include "device/cuda/cuda_device.h"

namespace perigee::hopper {
namespace {

/// The driver's function, found through the runtime so that programs need not link the driver.
decltype(&cuTensorMapEncodeTiled) encoder() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
               "cudaGetDriverEntryPointByVersion");
    PERIGEE_CHECK(found == cudaDriverEntryPointSuccess, "the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

CUtensorMap rows_map(void const* base, int64_t rows, int64_t heads, int64_t columns, int box_rows, int box_heads) {
    static auto const encode = encoder();
    auto const wide = [](int64_t x) { return static_cast<cuuint64_t>(x); };
    auto const narrow = [](int x) { return static_cast<cuuint32_t>(x); };
    cuuint64_t const extents[] = {wide(columns), wide(heads), wide(std::max<int64_t>(rows, 1))};
    cuuint64_t const strides[] = {wide(columns) * 2, wide(heads * columns) * 2};
    cuuint32_t const box[] = {64, narrow(box_heads), narrow(box_rows)};
    cuuint32_t const steps[] = {1, 1, 1};
    CUtensorMap map;
    CUresult const result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(base), extents, strides,
                                   box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    PERIGEE_CHECK(result == CUDA_SUCCESS, "no tensor map for [{}, {}, {}] in boxes of {} x {} rows: error {}", rows,
                  heads, columns, box_rows, box_heads, static_cast<int>(result));
    return map;
}

}  // namespace perigee::hopper
