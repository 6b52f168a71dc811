// MoBA on the GPU, run from host vectors for tests: every buffer between guards, every output and the scratch memory
// full of NaN beforehand.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "kernels/block_sparse_attention/stages.h"
#include "kernels/moba_gate/gate.h"
#include "kernels/moba_gate/reference.h"
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

/// Budgets of scratch memory with which the same kernels take more and more passes, down to the least that fits.
inline std::vector<size_t> shrinking_budgets(BlockSparseShape const& shape, AttentionTask task) {
    std::vector<size_t> budgets;
    try {
        for (size_t bytes = kAttentionScratchBytes;;) {
            BlockSparsePlan const plan = plan_attention(shape, task, bytes);
            if (plan.arch != plan_attention(shape, task).arch) break;
            budgets.push_back(plan.scratch_bytes);
            bytes = plan.scratch_bytes - 1;
        }
    } catch (Error const&) {
    }
    return budgets;
}
/// Just enough for the forward and the backward.
inline size_t least_budget(BlockSparseShape const& shape) {
    return std::max(shrinking_budgets(shape, AttentionTask::forward).back(),
                    shrinking_budgets(shape, AttentionTask::backward).back());
}

/// A problem on the GPU. Queries [begin, end) of the pack; the host vectors are always those of the whole pack.
class GpuMoba {
  public:
    GpuMoba(ReferenceProblem const& p, MobaOptions const& options, KernelArch arch = kernel_arch())
        : GpuMoba(p, options, 0, p.tokens(), kAttentionScratchBytes, arch) {}
    GpuMoba(ReferenceProblem const& p, MobaOptions const& options, int64_t begin, int64_t end,
            size_t scratch_limit = kAttentionScratchBytes, KernelArch arch = kernel_arch())
        : device_(make_cuda_device(0)),
          shape_{.tokens = p.tokens(),
                 .queries = end - begin,
                 .documents = std::ssize(p.cu_seqlens) - 1,
                 .heads = p.heads,
                 .kv_heads = p.kv_heads,
                 .head_dim = p.head_dim,
                 .block_size = options.block_size,
                 .top_k = options.top_k,
                 .arch = arch},
          options_(options),
          scratch_limit_(scratch_limit),
          begin_(begin),
          borders_(*device_, p.cu_seqlens),
          q_(*device_, rows(to_bf16(p.q), p.heads * p.head_dim)),
          k_(*device_, to_bf16(p.k)),
          v_(*device_, to_bf16(p.v)),
          d_o_(*device_, rows(to_bf16(p.d_o), p.heads * p.head_dim)) {
        problem_ = {.query_begin = begin,
                    .cu_seqlens = borders_.data(),
                    .scale = p.scale,
                    .q = q_.data(),
                    .k = k_.data(),
                    .v = v_.data(),
                    .stream = dynamic_cast<CudaDevice&>(*device_).stream()};
    }

    /// Of those the GPU has; by default the best.
    void use(KernelArch arch) { shape_.arch = arch; }
    /// By default the backward is deterministic.
    void add_in_any_order() { shape_.deterministic = false; }
    /// The backward takes the routing that the forward made.
    void keep_routing() {
        routing_ = std::make_unique<GpuArray<unsigned char>>(*device_, static_cast<int64_t>(routing_bytes(shape_)));
        problem_.routing = routing_->data();
    }
    std::vector<unsigned char> routing() const { return routing_->get(); }
    BlockSparseShape const& shape() const { return shape_; }
    Device& device() { return *device_; }

    /// Stages with fresh scratch memory.
    block_sparse::Stage stage(AttentionTask task) {
        BlockSparsePlan const plan = plan_attention(shape_, task, scratch_limit_);
        problem_.scratch = new_scratch(plan.bytes_beside(routing_ != nullptr));
        return block_sparse::make_stage(plan, problem_);
    }
    moba_gate::Stage gate() {
        MobaGatePlan const plan = plan_moba_gate(shape_, options_);
        return moba_gate::make_stage(plan, {.query_begin = begin_,
                                            .cu_seqlens = borders_.data(),
                                            .q = q_.data(),
                                            .k = k_.data(),
                                            .scratch = new_scratch(plan.scratch_bytes),
                                            .stream = problem_.stream});
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
        moba_gate::Stage const stage = gate();
        GpuArray<int32_t> chosen(*device_, shape_.queries * shape_.heads * shape_.slots());
        moba_gate_select(stage.plan, stage.problem, chosen.data());
        scratch_->get();
        return chosen.get();
    }
    struct Forward {
        std::vector<double> o;
        std::vector<float> lse;
        bool operator==(Forward const&) const = default;
    };
    Forward forward() {
        BlockSparsePlan const plan = stage(AttentionTask::forward).plan;
        GpuArray<bf16> o(*device_, shape_.queries * shape_.heads * shape_.head_dim);
        GpuArray<float> lse(*device_, shape_.queries * shape_.heads);
        block_sparse_forward(plan, problem_, o.data(), lse.data());
        scratch_->get();
        return {to_double(o.get()), lse.get()};
    }
    struct Backward {
        std::vector<double> dq, dk, dv;
        bool operator==(Backward const&) const = default;
    };
    /// From o and lse of these queries. `before`: what dk and dv held, to be added to; empty to be overwritten.
    Backward backward(std::vector<double> const& o, std::vector<float> const& lse, Backward const& before = {}) {
        BlockSparsePlan const plan = stage(AttentionTask::backward).plan;
        bool const add = !before.dk.empty();
        int64_t const keys = shape_.tokens * shape_.kv_heads * shape_.head_dim;
        GpuArray<bf16> const o_in(*device_, to_bf16(o)), dq(*device_, std::ssize(o));
        GpuArray<float> const lse_in(*device_, lse);
        GpuArray<bf16> const dk = add ? GpuArray<bf16>(*device_, to_bf16(before.dk)) : GpuArray<bf16>(*device_, keys);
        GpuArray<bf16> const dv = add ? GpuArray<bf16>(*device_, to_bf16(before.dv)) : GpuArray<bf16>(*device_, keys);
        block_sparse_backward(plan, problem_,
                              {.d_o = d_o_.data(),
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
    void* new_scratch(size_t bytes) {
        scratch_ = std::make_unique<GpuArray<unsigned char>>(*device_, static_cast<int64_t>(bytes));
        return scratch_->data();
    }
    template <class T>
    std::vector<T> rows(std::vector<T> const& all, int64_t width) const {
        return {all.begin() + begin_ * width, all.begin() + (begin_ + shape_.queries) * width};
    }

    std::unique_ptr<Device> device_;
    BlockSparseShape shape_;
    MobaOptions options_;
    size_t scratch_limit_;
    int64_t begin_;
    GpuArray<int32_t> borders_;
    GpuArray<bf16> q_, k_, v_, d_o_;
    std::unique_ptr<GpuArray<int32_t>> chosen_;
    std::unique_ptr<GpuArray<unsigned char>> routing_, scratch_;
    BlockSparseProblem problem_;
};

/// Skips its tests, visibly, without a GPU.
class GpuMobaTest : public ::testing::Test {
  protected:
    void SetUp() override {
        if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    }
};

}  // namespace perigee::testing
