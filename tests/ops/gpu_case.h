// How an operation on the GPU is tested: the same code runs it on the host in fp64 and twice on the GPU. Results must
// agree within the rounding of their dtype, and the two runs on the GPU in every bit.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/ops.h"
#include "support/random.h"

namespace perigee::testing {

using Values = std::vector<double>;

/// Random numbers that bf16 holds exactly, so that every side starts from the same ones.
inline Values random_bf16(int64_t count, uint64_t seed, double stddev = 1.0) {
    Values values = random_normal<double>(count, seed, stddev);
    for (double& x : values) x = to_float(to_bf16(static_cast<float>(x)));
    return values;
}
/// Random multiples of 1/16 between -7 and 7: bf16 holds the sum of two exactly.
inline Values random_sixteenths(int64_t count, uint64_t seed) {
    Values values = random_normal<double>(count, seed);
    for (double& x : values) x = std::clamp(std::round(x * 16), -112.0, 112.0) / 16;
    return values;
}
inline std::vector<int32_t> random_ids(int64_t count, int64_t vocab, uint64_t seed) {
    Philox const random(seed, Purpose::sample_order);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < count; ++i)
        ids.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(i), static_cast<uint64_t>(vocab))));
    return ids;
}

/// Tensors of one run of a case on one Ops, and what the case found.
class Lab {
  public:
    explicit Lab(Ops& ops) : ops(ops) {}

    Ops& ops;

    TensorView compute(Shape const& shape, Values const& values) { return filled(ops.compute_dtype(), shape, values); }
    TensorView main(Shape const& shape, Values const& values) { return filled(ops.main_dtype(), shape, values); }
    TensorView f32(Shape const& shape, Values const& values) { return filled(DType::f32, shape, values); }
    TensorView f64(Shape const& shape, Values const& values) { return filled(DType::f64, shape, values); }
    TensorView ids(std::vector<int32_t> const& values) {
        TensorView const view = poisoned(DType::i32, {std::ssize(values)});
        ops.upload(view, values.data());
        return view;
    }
    /// Outputs: every element is NaN.
    TensorView compute(Shape const& shape) { return poisoned(ops.compute_dtype(), shape); }
    TensorView main(Shape const& shape) { return poisoned(ops.main_dtype(), shape); }

    Values values(ConstView view) {
        std::vector<std::byte> bytes(static_cast<size_t>(view.bytes()));
        ops.download(bytes.data(), view);
        Values result(static_cast<size_t>(view.size()));
        for (size_t i = 0; i < result.size(); ++i) result[i] = decoded(view.dtype, bytes.data(), i);
        return result;
    }

    struct Result {
        std::string name;
        DType dtype;
        Values values;
    };
    void result(std::string const& name, ConstView view) { results.push_back({name, view.dtype, values(view)}); }
    std::vector<Result> results;

  private:
    TensorView poisoned(DType dtype, Shape const& shape) {
        auto const bytes = static_cast<size_t>(shape.size() * size_of(dtype));
        Buffer const& buffer = buffers_.emplace_back(ops.device(), bytes);
        TensorView const view(static_cast<std::byte*>(buffer.data()), dtype, shape);
        std::vector<unsigned char> const ones(bytes, 0xff);  // NaN in every floating-point format
        ops.upload(view, ones.data());
        return view;
    }
    TensorView filled(DType dtype, Shape const& shape, Values const& values) {
        PERIGEE_CHECK(shape.size() == std::ssize(values), "{} values for {}", values.size(), shape.str());
        TensorView const view = poisoned(dtype, shape);
        std::vector<std::byte> bytes(static_cast<size_t>(view.bytes()));
        for (size_t i = 0; i < values.size(); ++i) encode(dtype, bytes.data(), i, values[i]);
        ops.upload(view, bytes.data());
        return view;
    }
    template <class T>
    static void put(std::byte* bytes, size_t i, T value) {
        std::memcpy(bytes + i * sizeof(T), &value, sizeof(T));
    }
    template <class T>
    static T get(std::byte const* bytes, size_t i) {
        T value;
        std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
        return value;
    }
    static void encode(DType dtype, std::byte* bytes, size_t i, double x) {
        if (dtype == DType::f64) return put(bytes, i, x);
        if (dtype == DType::f32) return put(bytes, i, static_cast<float>(x));
        put(bytes, i, to_bf16(static_cast<float>(x)));
    }
    static double decoded(DType dtype, std::byte const* bytes, size_t i) {
        if (dtype == DType::f64) return get<double>(bytes, i);
        if (dtype == DType::f32) return get<float>(bytes, i);
        if (dtype == DType::i32) return get<int32_t>(bytes, i);
        return to_float(get<bf16>(bytes, i));
    }

    std::vector<Buffer> buffers_;
};

class GpuTest : public ::testing::Test {
  protected:
    void SetUp() override {
        if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
        cuda_ = make_cuda_device(0);
        gpu_ = make_cuda_ops(*cuda_);
    }

    Ops& gpu() { return *gpu_; }
    Ops& host() { return *exact_; }

    /// Relative L2 errors below 2e-3 for results in bf16 (the rounding alone makes about 1.6e-3, and up to 3.9e-3 in a
    /// few elements), 1e-5 for others.
    void compare(std::function<void(Lab&)> const& run) {
        Lab exact(host()), first(gpu()), second(gpu());
        for (Lab* lab : {&exact, &first, &second}) run(*lab);
        ASSERT_EQ(first.results.size(), exact.results.size());
        ASSERT_GT(first.results.size(), 0u);
        for (size_t i = 0; i < first.results.size(); ++i) {
            Lab::Result const& result = first.results[i];
            double const tolerance = result.dtype != DType::bf16 ? 1e-5 : result.values.size() < 64 ? 4e-3 : 2e-3;
            EXPECT_LT(relative_error(result.values, exact.results[i].values), tolerance) << result.name;
            EXPECT_EQ(result.values, second.results[i].values) << result.name << " differs from run to run";
        }
    }

  private:
    std::unique_ptr<Device> host_device_ = make_host_device();
    std::unique_ptr<Ops> exact_ = make_host_ops_f64(*host_device_, 2);
    std::unique_ptr<Device> cuda_;
    std::unique_ptr<Ops> gpu_;
};

}  // namespace perigee::testing
