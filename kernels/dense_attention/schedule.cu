#include "kernels/common/launch.cuh"
#include "kernels/common/scan.cuh"
#include "kernels/dense_attention/stages.h"

namespace perigee::dense {
namespace {

using namespace kernels;

constexpr int kBuckets = 256;          ///< of lengths: eight to an octave
constexpr int32_t kFewTiles = 256;     ///< of a head: its end leaves thread blocks idle
constexpr int64_t kCached = 32 << 20;  ///< bytes of keys and values that the L2 cache holds beside all else

struct ScheduleArgs {
    Schedule schedule;
    int32_t const* cu_seqlens;
    int32_t query_begin, query_end, tile_rows, group, bytes_per_token;
};

__device__ int32_t tiles_of(ScheduleArgs const& a, Document const& d) {
    return max(d.past - d.first + a.tile_rows - 1, 0) / a.tile_rows;
}
__device__ Document document_at(ScheduleArgs const& a, int32_t index) {
    Document d{};
    d.begin = a.cu_seqlens[index], d.end = a.cu_seqlens[index + 1];
    d.first = max(d.begin, a.query_begin), d.past = min(d.end, a.query_end);
    int64_t const bytes = int64_t{max(d.end - d.begin, 1)} * a.bytes_per_token;
    int64_t const cached = max(kCached / bytes, int64_t{1}) * a.group;
    int32_t const tiles = max(tiles_of(a, d), 1);
    int64_t const busy = tiles < kFewTiles ? kFewTiles / tiles : 1;
    d.heads_at_once = static_cast<int32_t>(min(max(cached, busy), int64_t{a.schedule.heads}));
    return d;
}
/// Long documents come first.
__device__ int32_t bucket_of(ScheduleArgs const& a, Document const& d) {
    if (d.past <= d.first) return kBuckets - 1;
    int32_t const octaves =
        static_cast<int32_t>(__float_as_uint(static_cast<float>(d.past - d.begin)) >> 20) - (127 << 3);
    return max(kBuckets - 2 - octaves, 0);
}

/// Which of equally long documents comes first is left to chance: no result depends on it.
__global__ void __launch_bounds__(kScanThreads) schedule_kernel(ScheduleArgs const a) {
    start_early();
    Schedule const& s = a.schedule;
    __shared__ int32_t count[kBuckets], first[kBuckets + 1];
    for (int i = threadIdx.x; i < kBuckets; i += kScanThreads) count[i] = 0;
    if (threadIdx.x == 0) *s.counter = 0;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < s.count; i += kScanThreads) atomicAdd(&count[bucket_of(a, document_at(a, i))], 1);
    __syncthreads();
    exclusive_scan(
        kBuckets, [&](int i) { return count[i]; }, first);
    __syncthreads();
    for (int32_t i = threadIdx.x; i < s.count; i += kScanThreads) {
        Document const d = document_at(a, i);
        s.documents[atomicAdd(&first[bucket_of(a, d)], 1)] = d;
    }
    __syncthreads();
    exclusive_scan(
        s.count, [&](int i) { return tiles_of(a, s.documents[i]); }, s.first_tile);
}

}  // namespace

Schedule schedule_tiles(DenseAttentionProblem const& p, void* scratch, Tiling const& tiling) {
    auto* const bytes = static_cast<unsigned char*>(scratch);
    ScheduleLayout const layout(p.shape.documents);
    Schedule const schedule{reinterpret_cast<int32_t*>(bytes),
                            reinterpret_cast<int32_t*>(bytes + layout.first_tile),
                            reinterpret_cast<Document*>(bytes + layout.documents),
                            static_cast<int32_t>(p.shape.documents),
                            tiling.heads,
                            tiling.parts};
    ScheduleArgs const args{schedule,
                            p.cu_seqlens,
                            static_cast<int32_t>(p.query_begin),
                            static_cast<int32_t>(p.query_begin + p.queries),
                            tiling.rows,
                            tiling.group,
                            tiling.bytes_per_token};
    launch(
        {.name = "schedule_dense_attention", .grid = {1}, .threads = kScanThreads, .stream = p.stream, .early = true},
        schedule_kernel, args);
    return schedule;
}

}  // namespace perigee::dense
