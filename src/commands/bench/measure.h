// How long operations take on a device, alone.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/philox.h"
#include "ops/ops.h"
#include "tensor/arena.h"

namespace perigee {

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A tensor of normal numbers: products of zeros run faster than real ones.
inline TensorView random_tensor(Ops& ops, Arena& arena, DType dtype, Shape shape, uint64_t seed) {
    TensorView const x = arena.allocate("speed of light", dtype, shape);
    ops.fill_normal(
        {.x = x.reshape({x.size()}), .random = Philox(seed, Purpose::mock_data), .part = {.width = x.size()}});
    return x;
}

/// Median seconds of `body`, each sample long enough that starting it does not count.
template <class Body>
double measure(Device& device, Body body) {
    body();
    device.synchronize();
    auto const start = Clock::now();
    body();
    device.synchronize();
    int64_t const repeats = std::clamp<int64_t>(static_cast<int64_t>(0.01 / seconds_since(start)), 1, 100);
    std::vector<double> samples;
    for (int sample = 0; sample < 5; ++sample) {
        auto const begin = Clock::now();
        for (int64_t i = 0; i < repeats; ++i) body();
        device.synchronize();
        samples.push_back(seconds_since(begin) / static_cast<double>(repeats));
    }
    std::ranges::sort(samples);
    return samples[2];
}

}  // namespace perigee
