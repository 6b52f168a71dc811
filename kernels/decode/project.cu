#include "kernels/decode/project.h"

#include "kernels/decode/pages.cuh"
#include "kernels/gemv/stream.cuh"

namespace perigee::decode {
namespace {

using namespace kernels;

/// A tile has four columns of the lower half of a head and their four RoPE partners in the upper half.
struct HalvesOfHeads {
    int32_t tiles_of_head, size;
    __device__ int32_t head(int32_t tile) const { return tile / tiles_of_head; }
    __device__ int32_t column(int32_t tile, int i) const {
        return i / 4 * (size / 2) + tile % tiles_of_head * 4 + i % 4;
    }
    __device__ int64_t row(int32_t tile, int i) const { return int64_t{head(tile)} * size + column(tile, i); }
};

struct Heads {
    HalvesOfHeads rows;
    Cache cache;
    bf16* q;
    bf16 const* bias;
    float const *cos, *sin;
    int32_t heads;

    __device__ __forceinline__ float biased(float value, int32_t head, int32_t column) const {
        float const x = widen(narrow<bf16>(value));
        return bias == nullptr ? x : widen(narrow<bf16>(x + widen(bias[head * rows.size + column])));
    }
    __device__ __forceinline__ void finish(int row, int32_t tile, int i, float value, float other, bool there) const {
        if (!there) return;
        int32_t const head = rows.head(tile), column = rows.column(tile, i), half = rows.size / 2;
        float x = biased(value, head, column);
        if (head < heads + cache.kv_heads) {
            float const y = biased(other, head, rows.column(tile, i ^ 4));
            int32_t const angle = row * half + column % half;
            x = x * cos[angle] + (i < 4 ? -y : y) * sin[angle];
        }
        if (head < heads) {
            q[(int64_t{row} * heads + head) * rows.size + column] = narrow<bf16>(x);
            return;
        }
        int32_t const token = cache.lengths[row];
        if (token < 0) return;
        bool const key = head < heads + cache.kv_heads;
        int32_t const g = (head - heads) % cache.kv_heads;
        (key ? cache.k : cache.v)[Pages(cache, row).row(token, g) * rows.size + column] = narrow<bf16>(x);
    }
};

}  // namespace

void project(Project const& x, cudaStream_t stream) {
    HalvesOfHeads const rows{x.cache.head_dim / 8, x.cache.head_dim};
    Heads const heads{rows, x.cache, x.q, x.bias, x.cos, x.sin, x.heads};
    gemv_detail::run(x.product, x.product.n / gemv_detail::kColumns, heads, stream);
}

}  // namespace perigee::decode
