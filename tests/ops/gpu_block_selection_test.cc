// Selection by position on the GPU is that of the CPU, slot for slot.
#include "ops/gpu_case.h"

namespace perigee::testing {

namespace {

using GpuBlockSelection = GpuTest;

std::vector<int32_t> select(Lab& lab, Selection const& selection, std::vector<int32_t> const& borders, int64_t begin) {
    int64_t const tokens = borders.back(), rows = tokens - begin, heads = 6, slots = budget_of(selection)->slots();
    std::vector<int32_t> chosen(static_cast<size_t>(rows * heads * slots), -777);
    TensorView const view = lab.ids(chosen).reshape({rows, heads, slots});
    lab.ops.select_blocks({.chosen_THS = view,
                           .q_THK = lab.compute({rows, heads, 32}),
                           .k_TGK = lab.compute({tokens, 2, 32}),
                           .cu_seqlens = borders,
                           .selection = selection,
                           .query_begin = begin,
                           .first_head = 10});
    lab.ops.download(chosen.data(), view);
    return chosen;
}

TEST_F(GpuBlockSelection, ByPositionIsThatOfTheHost) {
    for (Selection const& selection :
         {Selection(NearestBlocks{.block_size = 16, .top_k = 4}), Selection(NearestBlocks{.block_size = 7, .top_k = 2}),
          Selection(SinkNearestBlocks{.block_size = 16, .top_k = 4}),
          Selection(SinkNearestBlocks{.block_size = 7, .top_k = 2}),
          Selection(SinkNearestBlocks{.block_size = 5, .top_k = 40}),
          Selection(RandomBlocks{.block_size = 16, .top_k = 6, .seed = 3, .layer = 5}),
          Selection(RandomBlocks{.block_size = 5, .top_k = 40, .seed = uint64_t{1} << 40, .layer = 1})})
        for (auto const& borders : {std::vector<int32_t>{0, 700}, {0, 0, 1, 1, 34, 66, 195, 195, 640, 640}})
            for (int64_t const begin : {int64_t{0}, int64_t{50}, int64_t{195}}) {
                Lab on_host(host()), on_gpu(gpu());
                EXPECT_EQ(select(on_gpu, selection, borders, begin), select(on_host, selection, borders, begin));
            }
}

}  // namespace

}  // namespace perigee::testing
