// Three kernels, each with several thread blocks per row. The first finds the most likely token. The second makes a
// histogram of the exponents and finds how many of the most likely tokens are needed. The third collects those tokens,
// and its last thread block draws one.
#include "kernels/common/arrivals.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/sampling/sampling.h"

namespace perigee::kernels {

namespace {

constexpr int kThreads = 512;
constexpr int kPerThread = 8;
constexpr int kSlice = kThreads * kPerThread;  // logits per thread block
constexpr int kMost = 4096;                    // tokens that can be sorted
constexpr int kHeld = kMost / kThreads;
constexpr int kPerUnit = 16;  // bins per unit of the exponent
constexpr int kBins = 87 * kPerUnit;
constexpr double kOne = 1ull << 40;  // fixed-point 1 for sums of weights
constexpr double kSlack = 1e-5;      // allowed relative difference from the host's fp32 sums

using Wide = unsigned long long;

/// What the thread blocks of a row share.
struct Row {
    Wide best;  ///< sorts by logit, then lower ids first
    Wide weights[kBins];
    unsigned counts[kBins];
    unsigned broken, after_histogram, after_collection, candidates;
    int last_bin;       ///< last bin that is collected
    unsigned too_many;  ///< candidates: nothing is drawn
};
static_assert(sizeof(Row) % sizeof(Wide) == 0);

struct Args {
    SampleTokens s;
    Row* rows;
    Wide* collected;  ///< [rows, kMost]
};

/// Bits that sort like the logits; -0 equals +0.
__device__ __forceinline__ uint32_t sortable(float x) {
    uint32_t const bits = __float_as_uint(x + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_sortable(uint32_t key) {
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

/// Calls visit(logit, id) for this thread's part of its slice of row blockIdx.y.
template <class Visit>
__device__ __forceinline__ void each_logit(SampleTokens const& s, Visit const& visit) {
    int64_t const row = blockIdx.y;
    auto const penalty = static_cast<float>(s.rules[row].repetition_penalty);
    uint32_t const* const seen = s.seen == nullptr || penalty == 1 ? nullptr : s.seen + row * s.words;
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
        int64_t const id = int64_t{blockIdx.x} * kSlice + j * kThreads + threadIdx.x;
        if (id >= s.allowed) return;
        float x = widen(s.logits[row * s.width + id]);
        if (seen != nullptr && (seen[id / 32] >> id % 32 & 1) != 0) x = x < 0 ? x * penalty : x / penalty;
        visit(x, static_cast<int32_t>(id));
    }
}

__global__ void __launch_bounds__(kThreads) best_kernel(Args const a) {
    start_early();
    Row& row = a.rows[blockIdx.y];
    if (a.s.rules[blockIdx.y].index < 0) return;
    Wide best = 0;
    bool broken = false;
    each_logit(a.s, [&](float x, int32_t id) {
        broken |= !(x < INFINITY);
        Wide const key = Wide{sortable(x)} << 32 | ~static_cast<uint32_t>(id);
        if (key > best) best = key;
    });
    best = across_lanes<32>(best, [](Wide x, Wide y) { return x > y ? x : y; });
    if (threadIdx.x % 32 == 0) atomicMax(&row.best, best);
    if (broken) row.broken = 1;
}

struct Best {
    LogitWeight weight;
    bool drawn, usable;

    __device__ Best(Args const& a) {
        Row const& row = a.rows[blockIdx.y];
        DrawRule const& rule = a.s.rules[blockIdx.y];
        weight = {from_sortable(static_cast<uint32_t>(row.best >> 32)), LogitWeight::scale_of(rule.temperature)};
        usable = rule.index >= 0 && row.broken == 0 && weight.best > -INFINITY;
        drawn = usable && rule.temperature > 0;
    }
    /// kBins: too unlikely to be drawn.
    __device__ int bin(float logit) const {
        float const exponent = (weight.best - logit) * weight.scale;
        return exponent < 87 ? min(static_cast<int>(exponent * kPerUnit), kBins - 1) : kBins;
    }
};

/// Prefix sums over the bins.
struct Sums {
    Wide weights[kBins];
    unsigned counts[kBins];
};
template <class T>
__device__ void add_up(T (&values)[kBins]) {
    for (int distance = 1; distance < kBins; distance *= 2) {
        T before[(kBins + kThreads - 1) / kThreads] = {};
#pragma unroll
        for (int j = 0; j < (kBins + kThreads - 1) / kThreads; ++j)
            if (int const i = j * kThreads + threadIdx.x; i < kBins && i >= distance) before[j] = values[i - distance];
        __syncthreads();
#pragma unroll
        for (int j = 0; j < (kBins + kThreads - 1) / kThreads; ++j)
            if (int const i = j * kThreads + threadIdx.x; i < kBins) values[i] += before[j];
        __syncthreads();
    }
}

/// Index of the first bin whose prefix sum does not fall short, at most kBins - 1.
template <class Short>
__device__ int first_bin(Short const& falls_short) {
    int bin = 0;
    for (int begin = 0; begin < kBins; begin += kThreads) {
        int const i = begin + threadIdx.x;
        bin += __syncthreads_count(i < kBins && falls_short(i));
    }
    return min(bin, kBins - 1);
}

/// Last bin whose tokens may be drawn.
__device__ int last_bin(DrawRule const& rule, int64_t allowed, Sums const& sums) {
    auto const total = static_cast<double>(sums.weights[kBins - 1]);
    int bin = kBins - 1;
    auto const reaching = [&](double weight) {
        return first_bin([&](int i) { return static_cast<double>(sums.weights[i]) < weight; });
    };
    if (rule.top_k > 0 && rule.top_k < allowed) return first_bin([&](int i) { return sums.counts[i] < rule.top_k; });
    if (rule.top_p < 1)
        bin = reaching((rule.top_p + kSlack) * total);
    else if (rule.min_p <= 0)
        bin = reaching((rule.random.uniform(static_cast<uint64_t>(rule.index)) + kSlack) * total);
    if (rule.min_p > 0) bin = min(bin, static_cast<int>(min(-log(rule.min_p) * kPerUnit, 1e6)) + 1);
    return bin;
}

__global__ void __launch_bounds__(kThreads) histogram_kernel(Args const a) {
    start_early();
    __shared__ Sums sums;
    Row& row = a.rows[blockIdx.y];
    Best const best(a);
    if (!best.drawn) return;
    for (int i = threadIdx.x; i < kBins; i += kThreads) sums.weights[i] = 0, sums.counts[i] = 0;
    __syncthreads();
    each_logit(a.s, [&](float x, int32_t) {
        int const bin = best.bin(x);
        if (bin == kBins) return;
        atomicAdd(&sums.counts[bin], 1u);
        atomicAdd(&sums.weights[bin], static_cast<Wide>(static_cast<double>(best.weight(x)) * kOne));
    });
    __syncthreads();
    for (int i = threadIdx.x; i < kBins; i += kThreads) {
        if (sums.counts[i] == 0) continue;
        atomicAdd(&row.counts[i], sums.counts[i]);
        atomicAdd(&row.weights[i], sums.weights[i]);
    }
    if (!last_to_arrive(&row.after_histogram, gridDim.x)) return;
    for (int i = threadIdx.x; i < kBins; i += kThreads)
        sums.weights[i] = __ldcg(&row.weights[i]), sums.counts[i] = __ldcg(&row.counts[i]);
    __syncthreads();
    add_up(sums.weights);
    add_up(sums.counts);
    int const last = last_bin(a.s.rules[blockIdx.y], a.s.allowed, sums);
    if (threadIdx.x != 0) return;
    row.last_bin = last;
    row.too_many = sums.counts[last] > kMost;
    row.weights[0] = sums.weights[kBins - 1];  // total
}

/// Candidates with prefix sums of their weights. Likelier tokens come first, then higher ids.
struct Sorted {
    Wide keys[kMost];
    double sums[kMost];
};

/// Bitonic sort, descending; `size` is a power of two. Source: Batcher, "Sorting networks and their applications",
/// 1968.
__device__ void sort(Wide* keys, int size) {
    for (int run = 2; run <= size; run *= 2)
        for (int distance = run / 2; distance > 0; distance /= 2) {
            for (int i = threadIdx.x; i < size / 2; i += kThreads) {
                int const low = i / distance * 2 * distance + i % distance, high = low + distance;
                Wide const x = keys[low], y = keys[high];
                if ((x < y) == ((low & run) == 0)) keys[low] = y, keys[high] = x;
            }
            __syncthreads();
        }
}

/// Prefix sums of the weights of `count` candidates. All threads must call it.
__device__ void sum_weights(Sorted& sorted, int count, LogitWeight const& weight) {
    __shared__ double of_warps[kThreads / 32];
    int const thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    double held[kHeld], sum = 0;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
        int const i = thread * kHeld + j;
        if (i < count) sum += static_cast<double>(weight(from_sortable(static_cast<uint32_t>(sorted.keys[i] >> 32))));
        held[j] = sum;
    }
    double before = sum;
    for (int distance = 1; distance < 32; distance *= 2) {
        double const other = __shfl_up_sync(kAllLanes, before, distance);
        if (lane >= distance) before += other;
    }
    __syncthreads();
    if (lane == 31) of_warps[warp] = before;
    __syncthreads();
    before -= sum;
    for (int w = 0; w < warp; ++w) before += of_warps[w];
#pragma unroll
    for (int j = 0; j < kHeld; ++j)
        if (int const i = thread * kHeld + j; i < count) sorted.sums[i] = before + held[j];
    __syncthreads();
}

/// Number of i < count with is(i).
template <class Is>
__device__ int count_of(int count, Is const& is) {
    int found = 0;
    for (int begin = 0; begin < count; begin += kThreads) {
        int const i = begin + threadIdx.x;
        found += __syncthreads_count(i < count && is(i));
    }
    return found;
}

/// Index of the candidate to draw, by draw_token()'s rules.
__device__ int draw(DrawRule const& rule, Best const& best, Sorted& sorted, int count, double everything,
                    int64_t allowed) {
    bool const cut = rule.top_k > 0 && rule.top_k < allowed;
    if (cut && rule.top_k < count) {
        Wide const least = sorted.keys[rule.top_k - 1] >> 32;
        count = count_of(count, [&](int i) { return sorted.keys[i] >> 32 >= least; });
    }
    sum_weights(sorted, count, best.weight);
    double const total = cut ? sorted.sums[count - 1] : everything;
    int kept = count;
    if (rule.top_p < 1)
        kept = min(kept, count_of(count, [&](int i) { return sorted.sums[i] < rule.top_p * total; }) + 1);
    if (rule.min_p > 0) {
        auto const likely = [&](int i) {
            float const logit = from_sortable(static_cast<uint32_t>(sorted.keys[i] >> 32));
            return static_cast<double>(best.weight(logit)) >= rule.min_p;
        };
        kept = max(1, count_of(kept, likely));
    }
    bool const more = !cut && rule.top_p == 1 && rule.min_p <= 0;  // later tokens may be drawn, but not by this number
    double const drawn =
        rule.random.uniform(static_cast<uint64_t>(rule.index)) * (more ? total : sorted.sums[kept - 1]);
    return min(count_of(kept, [&](int i) { return sorted.sums[i] <= drawn; }), kept - 1);
}

__device__ void finish(Args const& a, int32_t id) {
    Row& row = a.rows[blockIdx.y];
    for (int i = threadIdx.x; i < kBins; i += kThreads) row.weights[i] = 0, row.counts[i] = 0;
    if (threadIdx.x != 0) return;
    row.best = 0, row.broken = 0, row.candidates = 0, row.last_bin = 0, row.too_many = 0;
    a.s.ids[blockIdx.y] = id;
    if (id >= 0 && a.s.seen != nullptr) a.s.seen[blockIdx.y * a.s.words + id / 32] |= 1u << id % 32;
}

__global__ void __launch_bounds__(kThreads) draw_kernel(Args const a) {
    start_early();
    extern __shared__ __align__(16) unsigned char memory[];
    Sorted& sorted = *reinterpret_cast<Sorted*>(memory);
    Row& row = a.rows[blockIdx.y];
    Best const best(a);
    Wide const likeliest = row.best;
    Wide* const collected = a.collected + int64_t{blockIdx.y} * kMost;
    bool const draws = best.drawn && row.too_many == 0;
    if (draws)
        each_logit(a.s, [&](float x, int32_t id) {
            if (best.bin(x) <= row.last_bin)
                collected[atomicAdd(&row.candidates, 1u)] = Wide{sortable(x)} << 32 | static_cast<uint32_t>(id);
        });
    if (!last_to_arrive(&row.after_collection, gridDim.x)) return;
    int32_t id = best.usable && !best.drawn ? static_cast<int32_t>(~static_cast<uint32_t>(likeliest)) : -1;
    if (draws) {
        int const count = static_cast<int>(__ldcg(&row.candidates));
        int size = 1;
        while (size < count) size *= 2;
        for (int i = threadIdx.x; i < size; i += kThreads) sorted.keys[i] = i < count ? __ldcg(collected + i) : 0;
        __syncthreads();
        sort(sorted.keys, size);
        double const everything = static_cast<double>(row.weights[0]) / kOne;
        int const drawn = draw(a.s.rules[blockIdx.y], best, sorted, count, everything, a.s.allowed);
        id = static_cast<int32_t>(static_cast<uint32_t>(sorted.keys[drawn]));
    }
    __syncthreads();  // every thread has read the row
    finish(a, id);
}

}  // namespace

size_t sample_scratch_bytes(int64_t rows) { return static_cast<size_t>(rows) * kMost * sizeof(Wide); }
size_t sample_zeros(int64_t rows) { return static_cast<size_t>(rows) * sizeof(Row) / sizeof(unsigned); }

void sample_tokens(SampleTokens const& s, cudaStream_t stream) {
    Args const args{s, reinterpret_cast<Row*>(s.zeros), static_cast<Wide*>(s.scratch)};
    int64_t const slices = ceil_div(s.allowed, kSlice);
    launch({.name = "sample_best", .grid = {slices, s.rows}, .threads = kThreads, .stream = stream, .early = true},
           best_kernel, args);
    launch({.name = "sample_histogram", .grid = {slices, s.rows}, .threads = kThreads, .stream = stream, .early = true},
           histogram_kernel, args);
    launch({.name = "sample_draw",
            .grid = {slices, s.rows},
            .threads = kThreads,
            .shared_bytes = sizeof(Sorted),
            .stream = stream,
            .early = true},
           draw_kernel, args);
}

}  // namespace perigee::kernels
