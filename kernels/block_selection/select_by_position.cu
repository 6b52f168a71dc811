// One thread per query and head; rules with k - 1 slots write them one by one.
#include "kernels/block_selection/select_by_position.h"
#include "kernels/common/documents.cuh"
#include "kernels/common/launch.h"

namespace perigee::kernels {

namespace {

constexpr int kThreads = 256;

template <SelectsByPosition Rule>
__global__ void __launch_bounds__(kThreads) fill_kernel(SelectByPosition const a, Rule const rule) {
    int64_t const i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i >= a.rows * a.heads) return;
    int64_t const token = a.query_begin + i / a.heads,
                  position =
                      token -
                      a.cu_seqlens[find_document(a.cu_seqlens, static_cast<int>(a.documents), static_cast<int>(token))];
    QueryPlace const query{
        .head = a.first_head + i % a.heads, .position = position, .block = position / rule.block_size};
    fill_slots(rule, query, a.chosen + i * (rule.top_k - 1));
}

}  // namespace

bool select_by_position(SelectByPosition const& args, Selection const& selection, cudaStream_t stream) {
    return std::visit(
        [&]<class Rule>(Rule const& rule) {
            if constexpr (SelectsByPosition<Rule>) {
                auto const blocks = static_cast<unsigned>(ceil_div(args.rows * args.heads, kThreads));
                if (blocks > 0) fill_kernel<<<blocks, kThreads, 0, stream>>>(args, rule);
                check_launch("select_by_position");
            }
            return SelectsByPosition<Rule>;
        },
        selection);
}

}  // namespace perigee::kernels
