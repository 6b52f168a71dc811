// How the kernels of QKV divide the work: a group of neighbouring lanes has one head of one token after the other, a
// thread the same columns of all of them, fetched ahead.
#pragma once

#include <algorithm>

#include "kernels/common/ahead.cuh"
#include "kernels/common/follow.cuh"
#include "kernels/common/launch.h"
#include "kernels/qkv/qkv.h"

namespace perigee::kernels {

/// Of a block, and blocks of a multiprocessor, where a kernel leaves no sums.
constexpr int kThreadsWithoutSums = 192, kBlocksWithoutSums = 2;

/// A thread's values of one half of a head: V runs of N.
template <int N, int V>
struct Half {
    float values[V][N];
};

/// Which head and which tokens are this thread's. A block has `heads` heads of several tokens at a time; threads that
/// are left over have none.
struct Place {
    QkvShape const& shape;
    int lanes, heads;
    int token_in_block, tokens_per_block;  ///< at a time
    int head, lane;
    bool exists;

    __device__ Place(QkvShape const& s, int lanes_of_head, int heads_of_block)
        : shape(s),
          lanes(lanes_of_head),
          heads(heads_of_block),
          token_in_block(static_cast<int>(threadIdx.x) / (lanes * heads)),
          tokens_per_block(static_cast<int>(blockDim.x) / (lanes * heads)),
          head(first_head() + static_cast<int>(threadIdx.x) / lanes % heads),
          lane(static_cast<int>(threadIdx.x) % lanes),
          exists(token_in_block < tokens_per_block && head < shape.heads + 2 * shape.kv_heads) {}

    /// Of the block.
    __device__ int first_head() const { return static_cast<int>(blockIdx.x) * heads; }
    /// This thread's first token, the way to its next, and how many it has.
    __device__ int64_t first() const { return int64_t{blockIdx.y} * tokens_per_block + token_in_block; }
    __device__ int64_t step() const { return int64_t{gridDim.y} * tokens_per_block; }
    __device__ int count() const {
        auto const rest = static_cast<unsigned>(shape.tokens - first()), each = static_cast<unsigned>(step());
        return exists && first() < shape.tokens ? static_cast<int>((rest - 1) / each + 1) : 0;
    }

    __device__ int half() const { return shape.size / 2; }
    __device__ bool is_q() const { return head < shape.heads; }
    __device__ bool is_v() const { return head >= shape.heads + shape.kv_heads; }
    __device__ int width() const { return (shape.heads + 2 * shape.kv_heads) * shape.size; }
    /// First column of the head in a row of the projection.
    __device__ int column() const { return head * shape.size; }
    /// Calls f(v, i) for each run of this thread; i is its place in the lower half.
    template <int N, int V, class F>
    __device__ __forceinline__ void runs(F const& f) const {
#pragma unroll
        for (int v = 0; v < V; ++v) {
            int const i = (v * lanes + lane) * N;
            if (i < half() && exists) f(v, i);
        }
    }
    /// Over the lanes of the head, each of which receives it.
    __device__ __forceinline__ float sum(float x) const {
        unsigned const group = (lanes == 32 ? ~0u : (1u << lanes) - 1) << (threadIdx.x % 32 - lane);
        for (int distance = lanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(group, x, distance);
        return x;
    }
};

/// Where a thread's head lies in a tensor, for one of its tokens after the other. Its elements lie less than 2^31 from
/// those of the next: a step is what all blocks work on at a time.
template <class T>
struct Walk {
    T* at;
    int step;

    __device__ __forceinline__ void advance() { at += step; }
};
/// Through [T, X].
template <class T>
__device__ Walk<T> walk_joined(T* qkv, Place const& p) {
    return {qkv + p.first() * p.width() + p.column(), static_cast<int>(p.step() * p.width())};
}
/// Through q, k or v.
template <class T>
__device__ Walk<T> walk_split(T* q, T* k, T* v, Place const& p) {
    auto const in = [&](T* tensor, int heads, int first_head) {
        int64_t const width = int64_t{heads} * p.shape.size;
        return Walk<T>{tensor + p.first() * width + (p.head - first_head) * p.shape.size,
                       static_cast<int>(p.step() * width)};
    };
    if (p.is_q()) return in(q, p.shape.heads, 0);
    if (p.is_v()) return in(v, p.shape.kv_heads, p.shape.heads + p.shape.kv_heads);
    return in(k, p.shape.kv_heads, p.shape.heads);
}
/// Through cos or sin.
__device__ inline Walk<float const> walk_angles(float const* table, Place const& p) {
    return {table + p.first() * p.half(), static_cast<int>(p.step() * p.half())};
}

/// A thread's part of one or two tensors and of the rotation, fetched ahead for one token after the other.
template <int N, int V, int kTensors, int kStages, int kThreads>
class HeadsAhead {
  public:
    using Ring = Ahead<N, (2 * kTensors + 4) * V, kStages, kThreads>;

    /// Where `second` is null, or there is one tensor, it is not read.
    __device__ HeadsAhead(Place const& place, void* memory, Walk<bf16 const> first, Walk<bf16 const> second,
                          float const* cos, float const* sin)
        : place_(place),
          rotated_(!place.is_v()),
          second_(second.at != nullptr),
          left_(place.count()),
          tensors_{first, second},
          cos_(walk_angles(cos, place)),
          sin_(walk_angles(sin, place)),
          ring_(memory) {}
    /// Begins to fetch the first tokens.
    __device__ __forceinline__ void begin() {
        for (int stage = 1; stage < kStages; ++stage) fetch();
    }
    /// Makes the next token current, and begins to fetch a later one.
    __device__ __forceinline__ void advance() {
        fetch();
        ring_.open_stage();
    }
    __device__ __forceinline__ void take(float (&low)[N], float (&high)[N], int tensor, int v) const {
        unpack(low, ring_.run(2 * (tensor * V + v)));
        unpack(high, ring_.run(2 * (tensor * V + v) + 1));
    }
    /// (low, high) <- rotation by the angle, or by its negative where `direction` is -1; v has none.
    __device__ __forceinline__ void rotate(float (&low)[N], float (&high)[N], int v, float direction) const {
        if (!rotated_) return;
        Run<float, N> const cos = ring_.wide_run(kAngles + 4 * v), sin = ring_.wide_run(kAngles + 4 * v + 2);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            float const l = low[j], h = high[j], turned = direction * sin.values[j];
            low[j] = l * cos.values[j] - h * turned;
            high[j] = h * cos.values[j] + l * turned;
        }
    }

  private:
    static constexpr int kAngles = 2 * kTensors * V;

    __device__ __forceinline__ void fetch() {
        if (left_ > 0) {
            place_.template runs<N, V>([&](int v, int i) {
#pragma unroll
                for (int tensor = 0; tensor < kTensors; ++tensor)
                    if (tensor == 0 || second_) {
                        ring_.fetch(2 * (tensor * V + v), tensors_[tensor].at + i);
                        ring_.fetch(2 * (tensor * V + v) + 1, tensors_[tensor].at + place_.half() + i);
                    }
                if (rotated_) {
                    ring_.fetch_shared(kAngles + 4 * v, cos_.at + i);
                    ring_.fetch_shared(kAngles + 4 * v + 2, sin_.at + i);
                }
            });
        }
        ring_.end_stage();
        --left_;
        cos_.advance(), sin_.advance();
#pragma unroll
        for (int tensor = 0; tensor < kTensors; ++tensor) tensors_[tensor].advance();
    }

    Place const& place_;
    bool rotated_, second_;
    int left_;  ///< tokens to fetch
    Walk<bf16 const> tensors_[2];
    Walk<float const> cos_, sin_;
    Ring ring_;
};

/// A head's weights as they lie in memory, which takes half the registers.
template <int N, int V>
struct Weights {
    Run<bf16, N> runs[2][V];

    __device__ __forceinline__ void load(bf16 const* from, Place const& place) {
        place.runs<N, V>([&](int v, int i) {
            runs[0][v] = load_run<N>(from + i);
            runs[1][v] = load_run<N>(from + place.half() + i);
        });
    }
    /// Both halves, widened anew each time: the compiler is kept from holding them.
    __device__ __forceinline__ void widen(float (&low)[N], float (&high)[N], int v) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if constexpr (N == 8) {
                auto* const words = reinterpret_cast<uint32_t*>(&runs[half][v]);
                asm volatile("" : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3]));
            }
        }
        unpack(low, runs[0][v]);
        unpack(high, runs[1][v]);
    }
};

__device__ __forceinline__ void* block_memory() {
    extern __shared__ __align__(16) unsigned char memory[];
    return memory;
}

/// A launch that fills the GPU: `blocks_per_token` blocks hold all heads of a token, and each of `token_groups` such
/// sets of blocks has tokens of its own.
struct Plan {
    int lanes, heads;  ///< of a head; of a block
    unsigned threads;
    size_t shared;
    int64_t blocks_per_token, token_groups;

    /// kernel(args..., lanes, heads)
    template <class Kernel, class... Args>
    void launch(char const* name, Kernel* kernel, cudaStream_t stream, Args const&... args) const {
        dim3 const grid(static_cast<unsigned>(blocks_per_token), static_cast<unsigned>(token_groups));
        follow(name, kernel, grid, dim3(threads), shared, stream, args..., lanes, heads);
    }
};

/// A thread has `values` values of either half of a head. A multiprocessor has `blocks` blocks at a time, each of at
/// most `most_threads` threads: what these fetch ahead keeps memory busy, and more are slower. A token takes the fewest
/// blocks in which whole heads fill at least 80% of the threads.
template <class Ring, class... Args>
Plan plan(QkvShape const& shape, int values, int most_threads, int blocks, void (*kernel)(Args...)) {
    int lanes = 1;
    while (lanes * values < shape.size / 2) lanes *= 2;
    int const all = shape.heads + 2 * shape.kv_heads;
    auto const heads = [&](int64_t blocks_per_token) { return static_cast<int>(ceil_div(all, blocks_per_token)); };
    auto const threads = [&](int64_t blocks_per_token) {
        int const of_token = heads(blocks_per_token) * lanes;
        return most_threads / of_token * of_token;
    };
    int64_t blocks_per_token = ceil_div(all, most_threads / lanes);
    while (blocks_per_token < all && 10 * threads(blocks_per_token) < 8 * most_threads) ++blocks_per_token;
    auto const of_block = static_cast<unsigned>(round_up(threads(blocks_per_token), 32));
    size_t const share = static_cast<size_t>(shared_of_multiprocessor()) / (blocks + 1);
    size_t const shared = std::max(Ring::bytes(of_block), share);  // more blocks have no room
    int64_t const resident = resident_blocks(kernel, of_block, shared);
    blocks_per_token = ceil_div(all, heads(blocks_per_token));
    int64_t const token_groups =
        std::clamp<int64_t>(resident / blocks_per_token, 1, std::min<int64_t>(shape.tokens, 65535));
    return {lanes, heads(blocks_per_token), of_block, shared, blocks_per_token, token_groups};
}

/// Calls `launch.operator()<N, V, kBias, kNorm>()`. `aligned`: all rows begin at multiples of 16 bytes, if heads do.
template <class Launch>
void with_options(QkvShape const& shape, bool aligned, bool bias, bool norm, Launch const& launch) {
    auto const widths = [&]<bool kBias, bool kNorm>() {
        if (aligned && shape.size % 16 == 0)
            launch.template operator()<8, 1, kBias, kNorm>();
        else
            launch.template operator()<1, 4, kBias, kNorm>();
    };
    if (bias && norm)
        widths.template operator()<true, true>();
    else if (bias)
        widths.template operator()<true, false>();
    else if (norm)
        widths.template operator()<false, true>();
    else
        widths.template operator()<false, false>();
}

}  // namespace perigee::kernels
