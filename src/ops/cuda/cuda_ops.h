// Ops on an NVIDIA GPU: bf16 weights and activations, fp32 accumulation, statistics and main gradients. Everything is
// queued on the device's one stream, in the order of the calls. What waits for it: download(), growth of scratch memory
// or tables, an upload while the staging ring is full, and a first call that measures or checks a library's kernels.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "ops/cuda/blas.h"
#include "ops/cuda/staging.h"
#include "ops/digest.h"
#include "ops/gpu_attention.h"
#include "ops/ops.h"

namespace perigee {

namespace decode {
struct Select;
struct Attend;
}  // namespace decode

class DenseAttention;

class CudaOps final : public Ops {
  public:
    CudaOps(CudaDevice& device, CudaOptions const& options);
    ~CudaOps() override;

    Device& device() override { return device_; }
    DType compute_dtype() const override { return DType::bf16; }

    void repeat(std::span<int64_t const> key, std::function<void()> const& body) override;
    void forget_repeated() override { passes_.clear(), parts_.clear(); }

    /// Graphs queued so far.
    int64_t replays() const { return replays_; }

    void run(Operation const& operation) override {
        if (holding_ && can_wait(operation)) {
            held_.push_back(operation);
            return;
        }
        queue_held();
        compute_one(operation);
    }
    int64_t routing_size(Shape const& q_THK, Shape const& k_TGK, std::span<int32_t const> cu_seqlens,
                         BlockBudget const& budget) const override;

  private:
    void compute_one(Operation const& operation) {
        std::visit([this](auto const& args) { compute(args); }, operation);
    }
    // One for every operation in the list.
    void compute(Upload const& args);
    void compute(Download const& args);
    void compute(Copy const& args);
    void compute(CopyRows const& args);
    void compute(FillZero const& args);
    void compute(FillNormal const& args);
    void compute(StochasticRounding const& args);
    void compute(MatMul const& args);
    void compute(Quantize const& args);
    void compute(QuantMatMul const& args);
    void compute(Add const& args);
    void compute(Scale const& args);
    void compute(Dropout const& args);
    void compute(EmbeddingForward const& args);
    void compute(EmbeddingBackward const& args);
    void compute(RmsNormForward const& args);
    void compute(RmsNormBackward const& args);
    void compute(RopeTable const& args);
    void compute(QkvForward const& args);
    void compute(QkvBackward const& args);
    void compute(KeyConvForward const& args);
    void compute(KeyConvBackward const& args);
    void compute(SelectBlocks const& args);
    void compute(AttentionForward const& args);
    void compute(AttentionBackward const& args);
    void compute(NormedProduct const& args);
    void compute(DecodeQkv const& args);
    void compute(KvAppend const& args);
    void compute(PoolBlocks const& args);
    void compute(DecodeSelect const& args);
    void compute(DecodeAttend const& args);
    void compute(DecodeSparse const& args);
    void compute(SampleTokens const& args);
    void compute(SwigluForward const& args);
    void compute(SwigluBackward const& args);
    void compute(SoftmaxStats const& args);
    void compute(SoftmaxRescale const& args);
    void compute(CrossEntropy const& args);
    void compute(SquaredNorm const& args);
    void compute(HashBits const& args);
    void compute(WeightedSum const& args);
    void compute(AdamW const& args);

    /// Addresses that captured graphs hold: scratch, counters, cu_seqlens, frequencies, and cuDNN's tables. The last
    /// are paired with the number of documents they have room for, which determines their layout.
    using Places = std::tuple<void const*, void const*, void const*, void const*, std::pair<void const*, int64_t>>;

    /// What is known of the operations of a key.
    struct Repeated {
        // What they find on the device, besides their arguments.
        std::vector<int32_t> borders;
        std::vector<double> frequencies;
        std::vector<int64_t> dense_tables;
        Places places = {};
        std::unique_ptr<CUgraphExec_st, void (*)(cudaGraphExec_t)> graph{nullptr, [](auto) {}};
        std::vector<PhaseClock::Mark> phases = {};  ///< that the graph enters
        bool refused = false;                       ///< they cannot be captured
        int64_t last_used = 0;                      ///< number of the call
    };

    // Block-sparse attention, and full attention by the same kernels.
    void block_attention_forward(AttentionForward const& args);
    void block_attention_backward(AttentionBackward const& args);

    decode::Select select_of(DecodeSelect const& args) const;
    decode::Attend attend_of(DecodeAttend const& args);

    cudaStream_t stream() const { return device_.stream(); }
    /// Device memory for the operation that runs, uninitialised; grows in the first steps, and then no more.
    void* scratch(size_t bytes);
    /// Counters that are zero before and after each operation; they grow as scratch does.
    unsigned* arrivals(size_t count);
    /// Values that are uploaded anew only when they change.
    template <class T>
    struct Table {
        Buffer memory = {};
        std::vector<T> values = {};
    };
    /// `values` on the device.
    template <class T>
    T const* on_device(Table<T>& table, std::span<T const> values);
    int32_t const* borders(std::span<int32_t const> cu_seqlens);
    double const* frequencies(std::span<double const> values);

    Places places() const;
    using Known = std::map<Digest, Repeated>;

    /// Body of an empty key: holds operations back until something else uses the queue.
    void repeat_between(std::function<void()> const& body);
    /// Queues the operations that are held back, as one where they are known.
    void queue_held();
    /// The steps of a repetition; `known` are all of its kind, at most `most`.
    void repeat_known(Known& known, size_t most, Digest const& name, std::function<void()> const& body);
    void queue_first(Known& known, size_t most, Digest const& name, std::function<void()> const& body);
    void restore_tables(Repeated const& known);
    bool capture(Repeated& known, std::function<void()> const& body);

    CudaDevice& device_;
    CudaOptions options_;
    Staging staging_;
    Blas blas_;
    std::unique_ptr<DenseAttention> dense_;
    Buffer scratch_, arrivals_;
    AttentionPlans plans_;
    Table<int32_t> borders_;
    Table<double> frequencies_;  ///< of RoPE
    Known passes_;               ///< by their keys
    Known parts_;                ///< of passes: by the operations
    bool holding_ = false;
    std::vector<Operation> held_;
    std::exception_ptr failure_;  ///< of operations that were held back, until the pass ends
    int64_t repeats_ = 0;         ///< calls
    int64_t replays_ = 0;
    bool warned_ = false;  ///< of what cannot be captured
};

}  // namespace perigee
