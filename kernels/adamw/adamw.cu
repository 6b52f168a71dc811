#include <array>
#include <cmath>
#include <type_traits>

#include "kernels/adamw/adamw.h"
#include "kernels/common/flat.cuh"
#include "kernels/common/stochastic.cuh"

namespace perigee::kernels {

namespace {

/// Random bits for stochastic rounding of a tensor's moments.
struct Rounding {
    Philox random;
    TensorPart part;

    /// One word per element of [i, i + N).
    template <int N>
    __device__ __forceinline__ void words(uint32_t (&to)[N], int64_t i) const {
        int64_t const first = part.index(i);
        if (N % 4 == 0 && first % 4 == 0 && part.index(i + N - 1) == first + N - 1) {
#pragma unroll
            for (int j = 0; j < N; j += 4) {
                std::array<uint32_t, 4> const block = random.block(static_cast<uint64_t>(first + j) / 4);
#pragma unroll
                for (int k = 0; k < 4 && j + k < N; ++k) to[j + k] = block[static_cast<size_t>(k)];
            }
            return;
        }
#pragma unroll 1
        for (int j = 0; j < N; ++j) {
            auto const n = static_cast<uint64_t>(part.index(i + j));
            to[j] = random.block(n / 4)[n % 4];
        }
    }
};

template <class Moment>
struct Update {
    float* w;
    Moment *m, *v;
    float const* g;
    bf16* rounded;
    float lr, unbias, keep, b1, c1, b2, c2, eps, grad_scale;
    Rounding rounding;

    template <int N>
    __device__ __forceinline__ void run(int64_t i) const {
        float weight[N], first[N], second[N], gradient[N];
        load(weight, w + i);
        load(first, m + i);
        load(second, v + i);
        load(gradient, g + i);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            float const grad = gradient[j] * grad_scale;
            first[j] = b1 * first[j] + c1 * grad;
            second[j] = b2 * second[j] + c2 * grad * grad;
            weight[j] = keep * weight[j] - lr * (first[j] / (sqrtf(second[j]) * unbias + eps));
        }
        store(w + i, weight);
        store_moments(i, first, second);
        if (rounded != nullptr) store(rounded + i, weight);
    }

  private:
    template <int N>
    __device__ __forceinline__ void store_moments(int64_t i, float const (&first)[N], float const (&second)[N]) const {
        if constexpr (std::is_same_v<Moment, float>) {
            store(m + i, first);
            store(v + i, second);
        } else {
            uint32_t words[N];
            rounding.words(words, i);
            Run<bf16, N> of_m, of_v;
#pragma unroll
            for (int j = 0; j < N; ++j) {
                of_m.values[j] = round_up_or_down(first[j], words[j] & 0xffffu);
                of_v.values[j] = round_up_or_down(second[j], words[j] >> 16);
            }
            store_run<N>(m + i, of_m);
            store_run<N>(v + i, of_v);
        }
    }
};

template <class Moment>
void queue_update(AdamW const& a, Moment* m, Moment* v, cudaStream_t stream) {
    auto const steps = static_cast<double>(a.step);
    Update<Moment> const update{
        .w = a.w,
        .m = m,
        .v = v,
        .g = a.g,
        .rounded = a.rounded,
        .lr = static_cast<float>(a.lr / (1 - std::pow(a.beta1, steps))),
        .unbias = static_cast<float>(1 / std::sqrt(1 - std::pow(a.beta2, steps))),
        .keep = static_cast<float>(1 - a.lr * a.weight_decay),
        .b1 = static_cast<float>(a.beta1),
        .c1 = static_cast<float>(1 - a.beta1),
        .b2 = static_cast<float>(a.beta2),
        .c2 = static_cast<float>(1 - a.beta2),
        .eps = static_cast<float>(a.eps),
        .grad_scale = static_cast<float>(a.grad_scale),
        .rounding = {a.random, a.part},
    };
    for_each(update, a.count, in_runs_of_eight(0, {a.w, m, v, a.g, a.rounded}), "adamw", stream);
}

}  // namespace

void adamw(AdamW const& args, cudaStream_t stream) {
    if (args.narrow_m != nullptr)
        queue_update(args, args.narrow_m, args.narrow_v, stream);
    else
        queue_update(args, args.m, args.v, stream);
}

}  // namespace perigee::kernels
