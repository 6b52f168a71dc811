// Operations on flat ranges of parameters and gradients.
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/flat/hash.h"
#include "ops/host/functions.h"
#include "ops/host/parallel.h"

namespace perigee::host {

namespace {
constexpr int64_t kGrain = int64_t{1} << 15;
}

template <class Real>
void add(Add const& args) {
    Real* const to = args.accumulated.as<Real>();
    Real const* const from = args.x.as<Real>();
    parallel_ranges(args.x.size(), kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) to[i] += from[i];
    });
}

template <class Real>
void scale(Scale const& args) {
    Real* const values = args.x.as<Real>();
    Real const f = static_cast<Real>(args.factor);
    parallel_ranges(args.x.size(), kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) values[i] *= f;
    });
}

template <class Real>
void fill_normal(FillNormal const& args) {
    Real* const x = args.x.as<Real>();
    parallel_ranges(args.x.size(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            auto const index = static_cast<uint64_t>(args.part.index(i));
            x[i] = static_cast<Real>(args.stddev * args.random.normal(index));
        }
    });
}

namespace {
/// Stochastic rounding. `added`: 16 random bits, added to the low half of x.
bf16 rounded_up_or_down(float x, uint32_t added) {
    return std::isfinite(x) ? bf16{static_cast<uint16_t>((std::bit_cast<uint32_t>(x) + added) >> 16)} : to_bf16(x);
}
}  // namespace

template <class Real>
void round_stochastically(StochasticRounding const& args) {
    bf16* const to = args.to.as<bf16>();
    Real const* const from = args.from.as<Real>();
    parallel_ranges(args.to.size(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            auto const x = static_cast<float>(from[i]);
            auto const n = static_cast<uint64_t>(args.part.index(i));
            uint32_t const added = args.random.block(n / 8)[n % 8 / 2] >> (n % 2 * 16) & 0xffffu;
            to[i] = rounded_up_or_down(x, added);
        }
    });
}

template <class Real>
void dropout(Dropout const& args) {
    Real* const y = args.y.as<Real>();
    Real const* const x = args.x.as<Real>();
    uint32_t const threshold = dropout_threshold(args.rate);
    Real const factor = static_cast<Real>(65536.0 / (65536.0 - threshold));
    parallel_ranges(args.x.size(), kGrain, [&](int64_t begin, int64_t end) {
        uint64_t known = ~uint64_t{0};  // index of the block in `draws`; neighbouring elements share one
        std::array<uint32_t, 4> draws{};
        for (int64_t i = begin; i < end; ++i) {
            auto const n = static_cast<uint64_t>(args.part.index(i));
            if (n / 8 != known) draws = args.random.block(known = n / 8);
            uint32_t const draw = draws[n % 8 / 2] >> (n % 2 * 16) & 0xffffu;
            y[i] = draw < threshold ? Real(0) : x[i] * factor;
        }
    });
}

template <class Real>
double squared_norm(ConstView x) {
    Real const* const values = x.as<Real>();
    constexpr int64_t kChunks = 256;
    std::array<double, kChunks> partials{};
    int64_t const chunk = std::max(kGrain, (x.size() + kChunks - 1) / kChunks);
    parallel_ranges(x.size(), chunk, [&](int64_t begin, int64_t end) {
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = begin; i < end; ++i) sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
        partials[static_cast<size_t>(begin / chunk)] = sum;
    });
    double total = 0;
    for (double partial : partials) total += partial;
    return total;
}

namespace {
/// Of elements of the size of Bits.
template <class Bits>
uint64_t hash_of_all(ConstView x) {
    std::atomic<uint64_t> total = 0;
    parallel_ranges(x.size(), kGrain, [&](int64_t begin, int64_t end) {
        uint64_t sum = 0;
        for (int64_t i = begin; i < end; ++i) {
            Bits bits;
            std::memcpy(&bits, x.data + i * static_cast<int64_t>(sizeof bits), sizeof bits);
            sum += kernels::hash_of(static_cast<uint64_t>(i), bits);
        }
        total += sum;
    });
    return total;
}
}  // namespace

uint64_t hash_bits(ConstView x) {
    switch (size_of(x.dtype)) {
        case 2:
            return hash_of_all<uint16_t>(x);
        case 4:
            return hash_of_all<uint32_t>(x);
        default:
            return hash_of_all<uint64_t>(x);
    }
}

template <class Real>
double weighted_sum(ConstView values_T, ConstView weights_T) {
    Real const* const values = values_T.as<Real>();
    float const* const weights = weights_T.as<float>();
    double sum = 0;
    for (int64_t t = 0; t < values_T.size(); ++t)
        sum += static_cast<double>(weights[t]) * static_cast<double>(values[t]);
    return sum;
}

namespace {

/// Constants of an update in this precision.
template <class Real>
struct Update {
    Real lr, unbias, keep, b1, c1, b2, c2, eps, grad_scale;

    explicit Update(AdamW const& args)
        : keep(static_cast<Real>(1 - args.lr * args.weight_decay)),
          b1(static_cast<Real>(args.beta1)),
          c1(static_cast<Real>(1 - args.beta1)),
          b2(static_cast<Real>(args.beta2)),
          c2(static_cast<Real>(1 - args.beta2)),
          eps(static_cast<Real>(args.eps)),
          grad_scale(static_cast<Real>(args.grad_scale)) {
        auto const steps = static_cast<double>(args.step);
        lr = static_cast<Real>(args.lr / (1 - std::pow(args.beta1, steps)));
        unbias = static_cast<Real>(1 / std::sqrt(1 - std::pow(args.beta2, steps)));
    }
    void operator()(Real& w, Real& m, Real& v, Real g) const {
        Real const grad = g * grad_scale;
        m = b1 * m + c1 * grad;
        v = b2 * v + c2 * grad * grad;
        w = keep * w - lr * (m / (std::sqrt(v) * unbias + eps));
    }
};

template <class Real>
void adamw_with_bf16_moments(AdamW const& args) {
    Real* const w = args.w.as<Real>();
    bf16* const m = args.m.as<bf16>();
    bf16* const v = args.v.as<bf16>();
    Real const* const g = args.g.as<Real>();
    Update<Real> const update(args);
    parallel_ranges(args.w.size(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            Real first = to_float(m[i]), second = to_float(v[i]);
            update(w[i], first, second, g[i]);
            auto const n = static_cast<uint64_t>(args.part.index(i));
            uint32_t const random = args.random.block(n / 4)[n % 4];
            m[i] = rounded_up_or_down(static_cast<float>(first), random & 0xffffu);
            v[i] = rounded_up_or_down(static_cast<float>(second), random >> 16);
        }
    });
}

}  // namespace

template <class Real>
void adamw(AdamW const& args) {
    if (args.m.dtype == DType::bf16) return adamw_with_bf16_moments<Real>(args);
    Real* const w = args.w.as<Real>();
    Real* const m = args.m.as<Real>();
    Real* const v = args.v.as<Real>();
    Real const* const g = args.g.as<Real>();
    Update<Real> const update(args);
    parallel_ranges(args.w.size(), kGrain, [=](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) update(w[i], m[i], v[i], g[i]);
    });
}

template void add<float>(Add const&);
template void add<double>(Add const&);
template void scale<float>(Scale const&);
template void scale<double>(Scale const&);
template void dropout<float>(Dropout const&);
template void dropout<double>(Dropout const&);
template double squared_norm<float>(ConstView);
template double squared_norm<double>(ConstView);
template void fill_normal<float>(FillNormal const&);
template void fill_normal<double>(FillNormal const&);
template void round_stochastically<float>(StochasticRounding const&);
template void round_stochastically<double>(StochasticRounding const&);
template double weighted_sum<float>(ConstView, ConstView);
template double weighted_sum<double>(ConstView, ConstView);
template void adamw<float>(AdamW const&);
template void adamw<double>(AdamW const&);

}  // namespace perigee::host
