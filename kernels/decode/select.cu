// The choice of past blocks: by position, or the best of the gate's scores.
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/decode/scores.h"
#include "kernels/moba_gate/top_k_rows.cuh"

namespace perigee::decode {
namespace {

using namespace kernels;

constexpr int kPickThreads = 128;
constexpr int kPositionThreads = 256;

struct PickArgs {
    Cache cache;
    float const* scores;
    int32_t* chosen;
    int32_t heads, slots, summed;
    bool force_previous;
};

/// Scores and blocks as one number, higher for what is chosen first: the later of equal scores. 0: never chosen.
__device__ __forceinline__ unsigned long long rank_of(float score, int32_t block) {
    if (isnan(score)) return 0;
    uint32_t const high = static_cast<uint32_t>(moba_gate::ordered(score)) ^ 0x80000000u;
    return static_cast<unsigned long long>(high) << 32 | static_cast<uint32_t>(block + 1);
}

__device__ __forceinline__ unsigned long long block_most(unsigned long long x) {
    auto const more = [](unsigned long long a, unsigned long long b) { return a > b ? a : b; };
    return across_lanes<32>(across_warps(across_lanes<32>(x, more), 0ull), more);
}

/// The choice of one head, or of `summed` heads that share it.
__global__ void __launch_bounds__(kPickThreads) pick_kernel(PickArgs const a) {
    start_early();
    __shared__ int32_t best[64];
    int32_t const s = blockIdx.y, first = blockIdx.x * a.summed, length = a.cache.lengths[s];
    int32_t const current = length < 0 ? 0 : length / a.cache.block_size, thread = threadIdx.x;
    float const* const scores = a.scores + (int64_t{s} * a.heads + first) * a.cache.most_blocks();
    unsigned long long last = ~0ull;
    int32_t found = 0;
    for (; found < a.slots; ++found) {
        unsigned long long most = 0;
        for (int32_t block = thread; block < current; block += kPickThreads) {
            bool const forced = a.force_previous && block == current - 1;
            unsigned long long const rank = rank_of(forced ? INFINITY : scores[block], block);
            if (rank < last && rank > most) most = rank;
        }
        most = block_most(most);
        if (most == 0) break;
        last = most;
        if (thread == 0) best[found] = static_cast<int32_t>(most & 0xffffffffu) - 1;
    }
    __syncthreads();
    if (thread >= a.slots) return;
    int32_t place = thread, block = -1;
    if (thread < found) {
        block = best[thread], place = 0;
        for (int i = 0; i < found; ++i) place += best[i] < block;
    }
    for (int h = 0; h < a.summed; ++h) a.chosen[(int64_t{s} * a.heads + first + h) * a.slots + place] = block;
}

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
    follow(position_kernel<Rule>, dim3(static_cast<unsigned>(ceil_div(x.cache.sequences * x.heads, kPositionThreads))),
           dim3(kPositionThreads), 0, x.stream, args, rule);
}

void select_by_gate(Select const& x, MobaOptions const& options) {
    int32_t const group = x.heads / x.cache.kv_heads, slots = static_cast<int32_t>(options.top_k - 1);
    int32_t const summed = options.selection == MobaSelection::per_group ? group : 1;
    (x.arch == KernelArch::sm90 ? score_sm90 : score_sm80)({x.cache, x.q, x.scores, x.heads, group, summed}, x.stream);
    launch({"decode_pick", x.heads / summed, x.cache.sequences, kPickThreads, 0, x.stream, 1, true}, pick_kernel,
           PickArgs{x.cache, x.scores, x.chosen, x.heads, slots, summed, options.force_previous});
}

}  // namespace

size_t select_floats(Cache const& cache, int64_t heads) {
    return static_cast<size_t>(cache.sequences) * static_cast<size_t>(heads) * static_cast<size_t>(cache.most_blocks());
}

void select(Select const& args, Selection const& selection) {
    std::visit(
        [&]<class Rule>(Rule const& rule) {
            if constexpr (SelectsByPosition<Rule>)
                select_by_position(args, rule);
            else if constexpr (std::is_same_v<Rule, MobaOptions>)
                select_by_gate(args, rule);
            else
                static_assert(std::is_same_v<Rule, FullAttention>, "this rule needs a case here");
        },
        selection);
}

}  // namespace perigee::decode
