// Attention over listed blocks, or over all: attend.cuh, then merge.cu.
#include "kernels/common/head_dim.h"
#include "kernels/decode/attend.cuh"

namespace perigee::decode {
namespace {

template <int D>
__global__ void __launch_bounds__(kAttendThreads) attend_kernel(AttendArgs const a) {
    let_next_begin();  // the merge kernel, which waits
    if (!a.all) wait_for_previous();
    auto& shared = *reinterpret_cast<AttendShared<D>*>(dynamic_shared());
    auto* const chosen = reinterpret_cast<int32_t*>(&shared + 1);
    int32_t const s = blockIdx.z, g = blockIdx.y, length = a.cache.lengths[s];
    int32_t blocks = length < 0 ? 1 : length / a.cache.block_size + 1;
    if (!a.all && length >= 0) {
        int32_t const* const from = a.chosen + (int64_t{s} * a.heads + int64_t{g} * a.group) * a.slots;
        for (int i = threadIdx.x; i < a.listed; i += kAttendThreads) chosen[i] = from[i];
        __syncthreads();
        list_blocks(chosen, a.listed, length / a.cache.block_size, shared.list_size);
        blocks = shared.list_size;
    }
    int32_t const count = attend_splits<D>(a, shared, chosen, blocks, length);
    wait_for_previous();
    if (blockIdx.x == 0 && threadIdx.x == 0) a.counts[s * a.cache.kv_heads + g] = count;
}

}  // namespace

int64_t most_splits(Attend const& x) {
    int64_t const chosen = 1 + int64_t{x.heads / x.cache.kv_heads} * x.slots, blocks = x.cache.most_blocks();
    return most_splits(x.all ? blocks : std::min(blocks, chosen), x.cache.block_size);
}

AttendArgs attend_args(Attend const& x) {
    int32_t const group = x.heads / x.cache.kv_heads, splits = static_cast<int32_t>(most_splits(x));
    int64_t const partials = int64_t{x.cache.sequences} * x.heads * splits;
    float* const lse = x.scratch + partials * x.cache.head_dim;
    return {.cache = x.cache,
            .q = x.q,
            .o = x.o,
            .chosen = x.chosen,
            .partial = x.scratch,
            .partial_lse = lse,
            .counts = reinterpret_cast<int32_t*>(lse + partials),
            .heads = x.heads,
            .group = group,
            .slots = x.all ? 0 : x.slots,
            .listed = x.all ? 0 : group * x.slots,
            .splits_per_block = static_cast<int32_t>(most_splits(1, x.cache.block_size)),
            .most_splits = splits,
            .all = x.all,
            .pools = x.pools,
            .scale_log2 = x.scale * kLog2e};
}

void attend(Attend const& x) {
    AttendArgs const args = attend_args(x);
    with_head_dim(x.cache.head_dim, [&]<int D>() {
        size_t const bytes = sizeof(AttendShared<D>) + list_bytes(args);
        if (bytes > room_for_shared(attend_kernel<D>))
            refuse_shape(
                "decoding: the blocks that a group of query heads selects are too many for the shared memory of this "
                "GPU's thread blocks: use a smaller top_k");
        int64_t const columns = grid_columns(args, resident_blocks(attend_kernel<D>, kAttendThreads, bytes));
        launch({.name = "decode_attend",
                .grid = {columns, x.cache.kv_heads, x.cache.sequences},
                .threads = kAttendThreads,
                .shared_bytes = bytes,
                .stream = x.stream,
                .early = true},
               attend_kernel<D>, args);
    });
    merge(args, x.stream);
}

}  // namespace perigee::decode
