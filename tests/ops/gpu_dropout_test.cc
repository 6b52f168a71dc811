// The GPU keeps the same elements as the host, however a tensor is split.
#include "ops/gpu_case.h"

namespace perigee::testing {

namespace {

using GpuDropout = GpuTest;

TEST_F(GpuDropout, KeepsWhatTheHostKeeps) {
    struct Part {
        int64_t rows, width, stride, first;
    };
    for (auto const& [rows, width, stride, first] :
         {Part{1, 7, 7, 0}, {37, 64, 64, 128}, {40, 96, 384, 3 * 384 + 96}, {33, 20, 53, 11}, {1000, 256, 1024, 768}})
        for (double const rate : {0.05, 0.5})
            for (int64_t const skipped : {0, 1}) {
                SCOPED_TRACE(fmt::format("{} x {} of {} from {}, rate {}", rows, width, stride, first, rate));
                int64_t const count = rows * width;
                Values const values = random_bf16(count + skipped, 5);
                compare([&](Lab& lab) {
                    TensorView const x = lab.compute({count + skipped}, values);
                    TensorView const range = x.rows(skipped, count + skipped);
                    lab.ops.dropout({.y = range,
                                     .x = range,
                                     .rate = rate,
                                     .random = {9, Purpose::dropout, 4},
                                     .part = {.first = first, .width = width, .stride = stride}});
                    lab.result("kept", x);
                });
            }
}

}  // namespace

}  // namespace perigee::testing
