#include "app/dry_run.h"

#include <sys/mman.h>

#include <algorithm>
#include <unordered_map>

#include "model/llama.h"

namespace perigee {
namespace {

/// Addresses without memory: whoever touches them ends with a segmentation fault.
class AddressSpace : public Device {
  public:
    ~AddressSpace() override {
        for (auto const& [memory, bytes] : mapped_) ::munmap(memory, bytes);
    }
    void* allocate(size_t bytes) override {
        bytes = std::max<size_t>(bytes, 1);
        void* const memory = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            fail(Category::config, "a step needs more than the {} bytes of an address space", bytes);
        mapped_.emplace(memory, bytes);
        return memory;
    }
    void release(void* memory) noexcept override {
        auto const found = mapped_.find(memory);
        ::munmap(found->first, found->second);
        mapped_.erase(found);
    }
    void copy(void*, void const*, size_t) override {}
    void* allocate_host(size_t bytes) override { return allocate(bytes); }
    void release_host(void* memory) noexcept override { release(memory); }
    void synchronize() override {}
    std::string name() const override { return "address space"; }
    bool is_host() const override { return false; }

  private:
    std::unordered_map<void*, size_t> mapped_;
};

/// Computes nothing, and remembers the largest logits it was shown.
class DryOps : public Ops {
  public:
    explicit DryOps(Device& device) : device_(&device) {}
    int64_t logits_bytes() const { return logits_bytes_; }

    Device& device() override { return *device_; }
    DType compute_dtype() const override { return DType::f32; }
    void upload(TensorView, void const*) override {}
    void download(void*, ConstView) override {}
    void copy(TensorView, ConstView) override {}
    void copy_rows(CopyRows const&) override {}
    void fill_zero(TensorView) override {}
    void fill_normal(FillNormal const&) override {}
    void matmul(MatMul const&) override {}
    void add(TensorView, ConstView) override {}
    void scale(TensorView, double) override {}
    void embedding_forward(TensorView, ConstView, ConstView, int64_t) override {}
    void embedding_backward(TensorView, ConstView, ConstView, int64_t) override {}
    void rmsnorm_forward(RmsNormForward const&) override {}
    void rmsnorm_backward(RmsNormBackward const&) override {}
    void rope_table(TensorView, TensorView, ConstView, std::span<double const>, double) override {}
    void qkv_forward(QkvForward const&) override {}
    void qkv_backward(QkvBackward const&) override {}
    void attention_forward(AttentionForward const&) override {}
    void attention_backward(AttentionBackward const&) override {}
    void moba_select(MobaSelect const&) override {}
    void swiglu_forward(TensorView, ConstView) override {}
    void swiglu_backward(TensorView, ConstView, ConstView) override {}
    void softmax_stats(SoftmaxStats const&) override {}
    void softmax_rescale(TensorView, ConstView, ConstView) override {}
    void cross_entropy(CrossEntropy const& args) override {
        logits_bytes_ = std::max(logits_bytes_, args.logits_TV.bytes());
    }
    void squared_norm(TensorView, ConstView) override {}
    void weighted_sum(TensorView, ConstView, ConstView) override {}
    void adamw(AdamW const&) override {}

  private:
    Device* device_;
    int64_t logits_bytes_ = 0;
};

/// Rank 0 of a group whose other ranks do not exist: sends nothing, waits for nobody.
class SilentComm : public Comm {
  public:
    explicit SilentComm(int size) : size_(size) {}
    int rank() const override { return 0; }
    int size() const override { return size_; }
    void all_reduce(TensorView, Reduce) override {}
    void all_gather(TensorView, ConstView) override {}
    void reduce_scatter(TensorView, ConstView) override {}
    void all_to_all(TensorView, ConstView) override {}
    void broadcast(TensorView, int) override {}
    void barrier() override {}
    std::unique_ptr<Comm> split(int, int) override {
        fail(Category::internal, "a group of {} ranks that do not exist has no parts", size_);
    }

  private:
    int size_;
};

Batch full_documents(int64_t samples, int64_t length) {
    auto const tokens = static_cast<size_t>(samples * length);
    Batch batch;
    batch.ids_T.resize(tokens);
    batch.targets_T.resize(tokens);
    batch.weights_T.assign(tokens, 1.0f);
    batch.positions_T.resize(tokens);
    for (int64_t i = 0; i <= samples; ++i) batch.cu_seqlens.push_back(static_cast<int32_t>(i * length));
    return batch;
}

}  // namespace

StepMemory step_memory(RunOptions const& options, int world_size) {
    AddressSpace device;
    DryOps ops(device);
    SilentComm world(world_size);
    Mesh const mesh(options.parallel, world, [](int size) { return std::make_unique<SilentComm>(size); });
    ParamLayout const layout(llama_params(options.model), mesh.shape().tp, 0);
    Llama model(options.model, options.attention.moba, layout, mesh, ops, options.train.recompute);
    Buffer const memory(device, static_cast<size_t>(layout.size() * size_of(DType::f32)));
    TensorView const flat(static_cast<std::byte*>(memory.data()), DType::f32, {layout.size()});
    Batch const batch = full_documents(options.train.micro_batch_size, options.data.sequence_length);

    std::vector<int64_t> steps = {0};
    for (AttentionSwitch const& change : options.attention.schedule) steps.push_back(change.step);
    StepMemory result;
    for (int64_t const step : steps) {
        Arena arena(device);
        auto const kinds = layer_kinds(options.attention, options.model.num_hidden_layers, step);
        model.loss_and_gradient(flat, {.grads = flat}, batch, kinds, arena);
        result.activations = std::max(result.activations, arena.peak_bytes());
    }
    result.logits = ops.logits_bytes();
    return result;
}

}  // namespace perigee
