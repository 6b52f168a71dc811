// The choice of past blocks: by position, or the best of the gate's scores.
#include "kernels/common/launch.cuh"
#include "kernels/decode/scores.h"

namespace perigee::decode {
namespace {

using namespace kernels;

constexpr int kPositionThreads = 256;

struct PositionArgs {
    Cache cache;
    int32_t* chosen;
    int32_t heads, first_head, slots;
};

template <SelectsByPosition Rule>
__global__ void __launch_bounds__(kPositionThreads) position_kernel(PositionArgs const a, Rule const rule) {
    start_early();
    int32_t const i = blockIdx.x * kPositionThreads + threadIdx.x;
    if (i >= a.cache.sequences * a.heads) return;
    int32_t const length = a.cache.lengths[i / a.heads];
    int32_t* const chosen = a.chosen + int64_t{i} * a.slots;
    if (length >= 0)
        return fill_slots(
            rule, QueryPlace{.head = a.first_head + i % a.heads, .position = length, .block = length / rule.block_size},
            chosen);
    for (int32_t slot = 0; slot < a.slots; ++slot) chosen[slot] = -1;
}

template <class Rule>
void select_by_position(Select const& x, Rule const& rule) {
    PositionArgs const args{x.cache, x.chosen, x.heads, x.first_head, static_cast<int32_t>(rule.top_k - 1)};
    follow("decode_select", position_kernel<Rule>,
           dim3(static_cast<unsigned>(ceil_div(x.cache.sequences * x.heads, kPositionThreads))), dim3(kPositionThreads),
           0, x.stream, args, rule);
}

}  // namespace

ScoreArgs score_args(Select const& x, MobaOptions const& options) {
    int32_t const group = x.heads / x.cache.kv_heads;
    return {.cache = x.cache,
            .q = x.q,
            .scores = x.scores,
            .chosen = x.chosen,
            .arrived = x.arrived,
            .heads = x.heads,
            .group = group,
            .slots = static_cast<int32_t>(options.top_k - 1),
            .summed = options.selection == MobaSelection::per_group ? group : 1,
            .force_previous = options.force_previous,
            .force_first = options.force_first};
}

void select(Select const& args, Selection const& selection) {
    std::visit(
        [&]<class Rule>(Rule const& rule) {
            if constexpr (SelectsByPosition<Rule>)
                select_by_position(args, rule);
            else if constexpr (std::is_same_v<Rule, MobaOptions>)
                (args.arch == KernelArch::sm90 ? score_sm90 : score_sm80)(score_args(args, rule), args.stream);
            else
                static_assert(std::is_same_v<Rule, FullAttention>, "this rule needs a case here");
        },
        selection);
}

}  // namespace perigee::decode
