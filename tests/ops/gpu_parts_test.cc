// Operations of a pass in which others use the queue: what lies between their uses is queued as one when it comes
// again.
#include "device/queue.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/gpu_case.h"

namespace perigee::testing {

namespace {

using GpuParts = GpuTest;

TEST_F(GpuParts, WithoutAKeyWhatLiesBetweenUsesOfTheQueueIsOne) {
    Lab lab(gpu());
    TensorView const sum = lab.main({1}, {0.0}), one = lab.main({1}, {1.0});
    auto& ops = dynamic_cast<CudaOps&>(gpu());
    Queue& queue = gpu().device().queue();
    int64_t const before = ops.replays();
    for (int i = 0; i < 5; ++i) {
        gpu().repeat({}, [&] {
            for (int j = 0; j < 3; ++j) gpu().add(sum, one);
            queue.record();
            gpu().scale(sum, 2);
            for (int j = 0; j < 3; ++j) gpu().add(sum, one);
            if (i == 3) gpu().scale(sum, 0);
        });
    }
    // x -> (x + 3) 2 + 3, and once to zero.
    EXPECT_EQ(lab.values(sum), Values{9});
    EXPECT_EQ(ops.replays() - before, 4 + 3) << "both parts from the second time on, but for one that was different";
}

TEST_F(GpuParts, AFailureOfWhatWasHeldBackIsNotLost) {
    Lab lab(gpu());
    TensorView const sum = lab.main({1}, {0.0}), other = lab.main({2}, {1.0, 1.0});
    Queue& queue = gpu().device().queue();
    auto const body = [&] {
        gpu().add(sum, other);
        try {
            queue.record();
        } catch (std::exception const&) {  // as a destructor does
        }
    };
    EXPECT_THROW(gpu().repeat({}, body), Error);
    TensorView const one = lab.main({1}, {1.0});
    gpu().repeat({}, [&] { gpu().add(sum, one); });
    EXPECT_EQ(lab.values(sum), Values{1});
}

}  // namespace

}  // namespace perigee::testing
