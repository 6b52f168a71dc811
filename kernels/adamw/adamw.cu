#include <cmath>

#include "kernels/adamw/adamw.h"
#include "kernels/common/flat.cuh"
#include "kernels/common/vector.cuh"

namespace perigee::kernels {

namespace {

/// x with 16 random bits added below the last that bf16 keeps.
__device__ __forceinline__ bf16 round_stochastically(float x, uint32_t random) {
    uint32_t const bits = __float_as_uint(x);
    bool const finite = (bits & 0x7f800000u) != 0x7f800000u;
    return finite ? bf16{static_cast<uint16_t>((bits + (random & 0xffffu)) >> 16)} : narrow<bf16>(x);
}

template <bool kStochastic>
struct Update {
    float *w, *m, *v;
    float const* g;
    bf16* rounded;
    float lr, unbias, keep, b1, c1, b2, c2, eps, grad_scale;
    Philox rounding;

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
        store(m + i, first);
        store(v + i, second);
        if (rounded == nullptr) return;
        if constexpr (kStochastic) {
            auto const random = rounding.block(static_cast<uint64_t>(i) / 8);
            Run<bf16, N> run;
#pragma unroll
            for (int j = 0; j < N; ++j) {
                int const which = N == 8 ? j : static_cast<int>(i % 8);
                run.values[j] = round_stochastically(weight[j], random[which / 2] >> (which % 2 * 16));
            }
            store_run<N>(rounded + i, run);
        } else {
            store(rounded + i, weight);
        }
    }
};

template <bool kStochastic>
void launch(AdamW const& a, cudaStream_t stream) {
    auto const steps = static_cast<double>(a.step);
    Update<kStochastic> const update{
        .w = a.w,
        .m = a.m,
        .v = a.v,
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
        .rounding = kStochastic ? *a.rounding : Philox(0, Purpose::rounding),
    };
    for_each(update, a.count, in_runs_of_eight(0, {a.w, a.m, a.v, a.g, a.rounded}), "adamw", stream);
}

}  // namespace

void adamw(AdamW const& args, cudaStream_t stream) {
    if (args.rounding != nullptr)
        launch<true>(args, stream);
    else
        launch<false>(args, stream);
}

}  // namespace perigee::kernels
