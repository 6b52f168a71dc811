// MoBA on the GPU, run from host vectors for tests: every buffer between guards, every output and the scratch memory
// full of NaN beforehand.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "kernels/moba/cuda/stages.h"
#include "kernels/moba/moba_reference.h"
#include "support/random.h"

namespace perigee::testing {

/// Every number a bf16, so that rounding the inputs is no part of any error.
inline std::vector<double> random_bf16(int64_t count, uint64_t seed, double stddev = 1) {
    std::vector<double> values = random_normal<double>(count, seed, stddev);
    for (double& x : values) x = to_float(to_bf16(static_cast<float>(x)));
    return values;
}

inline std::vector<bf16> to_bf16(std::vector<double> const& values) {
    std::vector<bf16> rounded;
    for (double const x : values) rounded.push_back(perigee::to_bf16(static_cast<float>(x)));
    return rounded;
}
inline std::vector<double> to_double(std::vector<bf16> const& values) {
    std::vector<double> wide;
    for (bf16 const x : values) wide.push_back(to_float(x));
    return wide;
}

/// Memory of the GPU between guards, NaN where nothing was written.
template <class T>
class GpuArray {
  public:
    GpuArray(Device& device, int64_t count)
        : device_(&device), count_(count), buffer_(device, static_cast<size_t>(count) * sizeof(T) + 2 * kGuard) {
        std::vector<unsigned char> const poison(buffer_.bytes(), 0xff);
        device.copy(buffer_.data(), poison.data(), poison.size());
    }
    GpuArray(Device& device, std::vector<T> const& values) : GpuArray(device, std::ssize(values)) {
        if (!values.empty()) device.copy(data(), values.data(), values.size() * sizeof(T));
    }
    T* data() const { return reinterpret_cast<T*>(static_cast<unsigned char*>(buffer_.data()) + kGuard); }
    std::vector<T> get() const {
        std::vector<unsigned char> all(buffer_.bytes());
        device_->copy(all.data(), buffer_.data(), all.size());
        size_t const end = all.size() - kGuard;
        for (size_t i = 0; i < kGuard; ++i)
            if (all[i] != 0xff || all[end + i] != 0xff) {
                ADD_FAILURE() << "written outside an array of " << count_;
                break;
            }
        std::vector<T> values(static_cast<size_t>(count_));
        if (count_ > 0) std::memcpy(values.data(), all.data() + kGuard, values.size() * sizeof(T));
        return values;
    }

  private:
    static constexpr size_t kGuard = 1024;
    Device* device_;
    int64_t count_;
    Buffer buffer_;
};

struct GpuMobaCase {
    std::vector<int32_t> cu_seqlens;
    int64_t heads = 4;
    int64_t kv_heads = 2;
    int64_t head_dim = 64;
    MobaOptions options = {.block_size = 64, .top_k = 3};
    uint64_t seed = 1;
};

inline ReferenceProblem make_gpu_problem(GpuMobaCase const& c) {
    int64_t const T = c.cu_seqlens.back();
    return {.heads = c.heads,
            .kv_heads = c.kv_heads,
            .head_dim = c.head_dim,
            .scale = 1 / std::sqrt(static_cast<double>(c.head_dim)),
            .cu_seqlens = c.cu_seqlens,
            .q = random_bf16(T * c.heads * c.head_dim, c.seed * 8),
            .k = random_bf16(T * c.kv_heads * c.head_dim, c.seed * 8 + 1),
            .v = random_bf16(T * c.kv_heads * c.head_dim, c.seed * 8 + 2),
            .d_o = random_bf16(T * c.heads * c.head_dim, c.seed * 8 + 3)};
}

/// A problem on the GPU. Queries [begin, end) of the pack; the host vectors are always those of the whole pack.
class GpuMoba {
  public:
    GpuMoba(ReferenceProblem const& p, MobaOptions const& options, MobaKernels kernels = moba_cuda_kernels())
        : GpuMoba(p, options, 0, p.tokens(), kMobaScratchBytes, kernels) {}
    GpuMoba(ReferenceProblem const& p, MobaOptions const& options, int64_t begin, int64_t end,
            size_t scratch_limit = kMobaScratchBytes, MobaKernels kernels = moba_cuda_kernels())
        : device_(make_cuda_device(0)),
          shape_{.tokens = p.tokens(),
                 .queries = end - begin,
                 .documents = std::ssize(p.cu_seqlens) - 1,
                 .heads = p.heads,
                 .kv_heads = p.kv_heads,
                 .head_dim = p.head_dim,
                 .options = options,
                 .gpu = kernels},
          begin_(begin),
          borders_(*device_, p.cu_seqlens),
          q_(*device_, rows(to_bf16(p.q), p.heads * p.head_dim)),
          k_(*device_, to_bf16(p.k)),
          v_(*device_, to_bf16(p.v)),
          d_o_(*device_, rows(to_bf16(p.d_o), p.heads * p.head_dim)) {
        problem_ = {.shape = shape_,
                    .query_begin = begin,
                    .cu_seqlens = borders_.data(),
                    .scale = p.scale,
                    .q = q_.data(),
                    .k = k_.data(),
                    .v = v_.data(),
                    .scratch_limit = scratch_limit,
                    .stream = dynamic_cast<CudaDevice&>(*device_).stream()};
    }

    /// Of those the GPU has; by default the best.
    void use(MobaKernels kernels) { shape_.gpu = problem_.shape.gpu = kernels; }
    /// By default the backward is deterministic.
    void add_in_any_order() { shape_.deterministic = problem_.shape.deterministic = false; }
    /// The backward takes the lists that the forward made.
    void keep_lists() {
        lists_ = std::make_unique<GpuArray<unsigned char>>(*device_, static_cast<int64_t>(moba_lists_bytes(shape_)));
        problem_.lists = lists_->data();
    }
    std::vector<unsigned char> lists() const { return lists_->get(); }
    MobaShape const& shape() const { return shape_; }
    Device& device() { return *device_; }

    /// A stage list with fresh scratch memory.
    moba::Stage stage(MobaTask task) {
        MobaPlan const plan = plan_moba(shape_, task, problem_.scratch_limit);
        size_t const bytes = plan.bytes_beside(lists_ != nullptr);
        scratch_ = std::make_unique<GpuArray<unsigned char>>(*device_, static_cast<int64_t>(bytes));
        problem_.scratch = scratch_->data();
        return moba::make_stage(problem_, task);
    }
    void choose(std::vector<int32_t> const& chosen) {
        chosen_ = std::make_unique<GpuArray<int32_t>>(*device_, rows(chosen, shape_.heads * shape_.slots()));
        problem_.chosen = chosen_->data();
    }
    /// Memory of a stage, copied to the host.
    template <class T>
    std::vector<T> read(T const* from, int64_t count) {
        std::vector<T> values(static_cast<size_t>(count));
        if (count > 0) device_->copy(values.data(), from, values.size() * sizeof(T));
        return values;
    }

    std::vector<int32_t> select() {
        stage(MobaTask::select);
        GpuArray<int32_t> chosen(*device_, shape_.queries * shape_.heads * shape_.slots());
        moba_cuda_select(problem_, chosen.data());
        scratch_->get();
        return chosen.get();
    }
    struct Forward {
        std::vector<double> o;
        std::vector<float> lse;
        bool operator==(Forward const&) const = default;
    };
    Forward forward() {
        stage(MobaTask::forward);
        GpuArray<bf16> o(*device_, shape_.queries * shape_.heads * shape_.head_dim);
        GpuArray<float> lse(*device_, shape_.queries * shape_.heads);
        moba_cuda_forward(problem_, o.data(), lse.data());
        scratch_->get();
        return {to_double(o.get()), lse.get()};
    }
    struct Backward {
        std::vector<double> dq, dk, dv;
        bool operator==(Backward const&) const = default;
    };
    /// From o and lse of these queries. `before`: what dk and dv held, to be added to; empty to be overwritten.
    Backward backward(std::vector<double> const& o, std::vector<float> const& lse, Backward const& before = {}) {
        stage(MobaTask::backward);
        bool const add = !before.dk.empty();
        int64_t const keys = shape_.tokens * shape_.kv_heads * shape_.head_dim;
        GpuArray<bf16> const o_in(*device_, to_bf16(o)), dq(*device_, std::ssize(o));
        GpuArray<float> const lse_in(*device_, lse);
        GpuArray<bf16> const dk = add ? GpuArray<bf16>(*device_, to_bf16(before.dk)) : GpuArray<bf16>(*device_, keys);
        GpuArray<bf16> const dv = add ? GpuArray<bf16>(*device_, to_bf16(before.dv)) : GpuArray<bf16>(*device_, keys);
        moba_cuda_backward(problem_, {.d_o = d_o_.data(),
                                      .o = o_in.data(),
                                      .lse = lse_in.data(),
                                      .dq = dq.data(),
                                      .dk = dk.data(),
                                      .dv = dv.data(),
                                      .add_to_dkv = add});
        scratch_->get();
        return {to_double(dq.get()), to_double(dk.get()), to_double(dv.get())};
    }

  private:
    template <class T>
    std::vector<T> rows(std::vector<T> const& all, int64_t width) const {
        return {all.begin() + begin_ * width, all.begin() + (begin_ + shape_.queries) * width};
    }

    std::unique_ptr<Device> device_;
    MobaShape shape_;
    int64_t begin_;
    GpuArray<int32_t> borders_;
    GpuArray<bf16> q_, k_, v_, d_o_;
    std::unique_ptr<GpuArray<int32_t>> chosen_;
    std::unique_ptr<GpuArray<unsigned char>> lists_, scratch_;
    MobaProblem problem_;
};

/// Skips its tests, visibly, without a GPU.
class GpuMobaTest : public ::testing::Test {
  protected:
    void SetUp() override {
        if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    }
};

}  // namespace perigee::testing
