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

    /// Where a column goes, and what it takes besides its own sum. Values have neither cos nor sin.
    struct Place {
        bf16* to;
        bf16 own_bias, other_bias;
        float cos, sin;
    };
    /// Row of the newest token's first key; -1 where there is none.
    __device__ __forceinline__ int64_t of_row(int row, bool there) const {
        int32_t const token = there ? cache.lengths[row] : -1;
        return token < 0 ? -1 : Pages(cache, row).row(token, 0);
    }
    __device__ __forceinline__ Place prepare(int64_t first_key, int row, int32_t tile, int i, bool there) const {
        int32_t const head = rows.head(tile), column = rows.column(tile, i), half = rows.size / 2;
        Place place{nullptr, narrow<bf16>(0.f), narrow<bf16>(0.f), 1, 0};
        if (!there) return place;
        bool const query = head < heads, value = head >= heads + cache.kv_heads;
        if (query)
            place.to = q + (int64_t{row} * heads + head) * rows.size + column;
        else if (first_key >= 0)
            place.to = (value ? cache.v : cache.k) + (first_key + (head - heads) % cache.kv_heads) * rows.size + column;
        if (bias != nullptr) {
            place.own_bias = bias[head * rows.size + column];
            place.other_bias = bias[head * rows.size + rows.column(tile, i ^ 4)];
        }
        if (value) return place;
        int32_t const angle = row * half + column % half;
        place.cos = cos[angle], place.sin = sin[angle];
        return place;
    }
    __device__ __forceinline__ float biased(float value, bf16 by) const {
        float const x = widen(narrow<bf16>(value));
        return bias == nullptr ? x : widen(narrow<bf16>(x + widen(by)));
    }
    __device__ __forceinline__ void finish(Place const& place, int, int32_t tile, int i, float value,
                                           float other) const {
        if (place.to == nullptr) return;
        float const x = biased(value, place.own_bias);
        bool const turns = rows.head(tile) < heads + cache.kv_heads;
        float const sine = i < 4 ? -place.sin : place.sin;
        *place.to = narrow<bf16>(turns ? x * place.cos + biased(other, place.other_bias) * sine : x);
    }
};

}  // namespace

void project(Project const& x, cudaStream_t stream) {
    HalvesOfHeads const rows{x.cache.head_dim / 8, x.cache.head_dim};
    Heads const heads{rows, x.cache, x.q, x.bias, x.cos, x.sin, x.heads};
    gemv_detail::run(x.product, x.product.n / gemv_detail::kColumns, heads, stream);
}

}  // namespace perigee::decode
