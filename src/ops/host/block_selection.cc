#include "ops/checks.h"
#include "ops/host/attention.h"
#include "ops/host/moba_select.h"

namespace perigee::host {
namespace {

template <SelectsByPosition Rule>
void select_by_position(SelectBlocks const& args, Rule const& rule) {
    int64_t const H = args.chosen_THS[1], S = args.chosen_THS[2];
    auto* const chosen = args.chosen_THS.as<int32_t>();
    Segment const queries = queries_of(args);
#pragma omp parallel for schedule(dynamic)
    for (size_t d = 1; d < args.cu_seqlens.size(); ++d) {
        int64_t const begin = args.cu_seqlens[d - 1], end = std::min<int64_t>(args.cu_seqlens[d], queries.end);
        for (int64_t token = std::max(begin, queries.begin); token < end; ++token)
            for (int64_t h = 0; h < H; ++h) {
                QueryPlace const query{
                    .head = args.first_head + h, .position = token - begin, .block = (token - begin) / rule.block_size};
                fill_slots(rule, query, chosen + ((token - queries.begin) * H + h) * S);
            }
    }
}

}  // namespace

template <class Real>
void select_blocks(SelectBlocks const& args) {
    check(args);
    if (args.chosen_THS.size() == 0) return;
    std::visit(
        [&]<class Rule>(Rule const& rule) {
            if constexpr (SelectsByPosition<Rule>)
                select_by_position(args, rule);
            else if constexpr (std::is_same_v<Rule, MobaOptions>)
                choose_blocks<Real>(args, rule, BlockGrid(args.cu_seqlens, rule.block_size));
            else
                static_assert(std::is_same_v<Rule, FullAttention>, "this rule needs a case here");
        },
        args.selection);
}

template void select_blocks<float>(SelectBlocks const&);
template void select_blocks<double>(SelectBlocks const&);

}  // namespace perigee::host
