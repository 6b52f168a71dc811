#include <cmath>

#include "kernels/adamw/adamw.h"
#include "kernels/common/flat.cuh"
#include "kernels/common/vector.cuh"

namespace perigee::kernels {

namespace {

struct Update {
    float *w, *m, *v;
    float const* g;
    bf16* rounded;
    float lr, unbias, keep, b1, c1, b2, c2, eps, grad_scale;

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
        if (rounded != nullptr) store(rounded + i, weight);
    }
};

}  // namespace

void adamw(AdamW const& a, cudaStream_t stream) {
    auto const steps = static_cast<double>(a.step);
    Update const update{
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
    };
    for_each(update, a.count, in_runs_of_eight(0, {a.w, a.m, a.v, a.g, a.rounded}), "adamw", stream);
}

}  // namespace perigee::kernels
