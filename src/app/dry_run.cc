#include "app/dry_run.h"

#include <algorithm>

#include "app/step_clock.h"
#include "comm/ring_bytes.h"
#include "ops/gpu_attention.h"
#include "ops/gpu_limits.h"
#include "train/learner.h"

namespace perigee {
namespace {

constexpr int64_t kContextBytes = int64_t{571} << 20;  // on an H200, CUDA 13.0

/// Addresses that no process is given: whoever touches them ends with a segmentation fault. In place of the host's
/// memory or of a GPU's.
class AddressSpace : public Device {
  public:
    /// `rates` may be null: then no time passes.
    AddressSpace(bool is_host, DeviceRates const* rates) : is_host_(is_host), queues_(*this, rates) {}
    ~AddressSpace() override { in_flight() = InFlight(); }  // its points know the queues
    Queue& queue() override { return queues_.at("compute"); }
    Queue& lane(std::string const& name, Priority) override { return queues_.at(name); }
    ClockedQueues& clocks() { return queues_; }
    void* allocate(size_t bytes) override {
        constexpr uintptr_t kAlignment = 256;
        uintptr_t const begin = next_;
        if (bytes > kEnd - next_)
            fail(Category::config,
                 "a rank would need more than {} bytes, which no machine has: make model, sequence or micro-batch "
                 "smaller, or take more ranks",
                 kEnd - kBegin);
        next_ += (bytes + kAlignment) / kAlignment * kAlignment;
        return reinterpret_cast<void*>(begin);
    }
    void release(void*) noexcept override {}
    void copy(void*, void const*, size_t) override {}
    void* allocate_host(size_t bytes) override { return allocate(bytes); }
    void release_host(void* memory) noexcept override { release(memory); }
    void synchronize() override {}
    std::string name() const override { return "address space"; }
    bool is_host() const override { return is_host_; }

    static bool holds(void const* address) {
        auto const place = reinterpret_cast<uintptr_t>(address);
        return kBegin <= place && place < kEnd;
    }

  private:
    // Above what x86-64 gives a process unasked, below the byte that arm64 ignores.
    static constexpr uintptr_t kBegin = uintptr_t{1} << 55, kEnd = uintptr_t{1} << 56;
    bool is_host_;
    uintptr_t next_ = kBegin;
    ClockedQueues queues_;
};

/// Computes nothing; notes the scratch memory that attention would take on a GPU, and throws what its kernels would
/// refuse.
class DryOps : public Ops {
  public:
    DryOps(AddressSpace& device, CudaOptions const& options, bool on_hopper)
        : device_(&device),
          on_hopper_(on_hopper),
          deterministic_(options.deterministic),
          plans_(KernelArch::sm90, options.deterministic, options.moba_scratch) {}
    int64_t scratch_bytes() const { return static_cast<int64_t>(scratch_); }

    Device& device() override { return *device_; }
    DType compute_dtype() const override { return device_->is_host() ? DType::f32 : DType::bf16; }
    void run(Operation const& operation) override {
        device_->clocks().run(operation);
        if (device_->is_host()) return;
        if (auto const* const norm = std::get_if<RmsNormForward>(&operation)) check_gpu_norm(norm->x_TD[1]);
        if (auto const* const qkv = std::get_if<QkvForward>(&operation)) check_gpu_heads(qkv->q_THK[2]);
        if (auto const* const forward = std::get_if<AttentionForward>(&operation)) note(*forward);
        if (auto const* const backward = std::get_if<AttentionBackward>(&operation)) note(*backward);
        if (auto const* const select = std::get_if<SelectBlocks>(&operation)) note(*select);
    }
    int64_t routing_size(Shape const& q_THK, Shape const& k_TGK, std::span<int32_t const> cu_seqlens,
                         BlockBudget const& budget) const override {
        return device_->is_host() ? 0 : gpu_routing_size(q_THK, k_TGK, cu_seqlens, budget);
    }

  private:
    DenseAttentionShape shape_of(auto const& args) const {
        return dense_shape(args.q_THK.shape, args.k_TGK.shape, args.cu_seqlens, deterministic_);
    }
    void note(AttentionForward const& args) {
        AttentionBackend const backend = attention_backend(args, plans_.arch());
        if (backend == AttentionBackend::dense) note(dense_forward_scratch(shape_of(args)));
        if (backend == AttentionBackend::block_sparse) note(plans_.of(args).bytes_beside(!routing_of(args).empty()));
    }
    void note(AttentionBackward const& args) {
        AttentionBackend const backend = attention_backend(args, plans_.arch(), deterministic_);
        if (backend == AttentionBackend::cudnn) note(cudnn_backward_scratch(args));
        if (backend == AttentionBackend::dense) note(dense_backward_scratch(shape_of(args)));
        // Other GPUs compute by cuDNN what this plan, which is for Hopper, gives to the dense kernels.
        if (backend == AttentionBackend::dense && !on_hopper_) note(cudnn_backward_scratch(args));
        if (backend == AttentionBackend::block_sparse)
            note(plans_.of(args).bytes_beside(forward_left_routing(args, plans_.arch())));
    }
    void note(SelectBlocks const& args) {
        bool const is_gate = std::holds_alternative<MobaOptions>(args.selection);
        if (args.chosen_THS.size() > 0 && is_gate) note(plans_.of(args).scratch_bytes);
    }
    void note(size_t scratch) { scratch_ = std::max(scratch_, scratch); }

    AddressSpace* device_;
    bool on_hopper_;
    bool deterministic_;
    AttentionPlans plans_;
    size_t scratch_ = 0;
};

/// Notes what is sent in a step.
class Ledger {
  public:
    /// Names the memory of a class; other memory of the device holds activations.
    void name(std::function<bool(void const*)> holds, char const* content) {
        named_.emplace_back(std::move(holds), content);
    }

    /// A rank brings `brought` bytes; `whole` is the larger side of the exchange.
    void add(Axis axis, int ranks, Collective collective, ConstView whole, int64_t brought) {
        if (ranks == 1) return;
        Sent& entry = traffic_[{to_string(axis), collective, content(whole)}];
        ++entry.calls;
        entry.bytes += ring_bytes(collective, brought, ranks);
    }
    /// Everything noted since the last call.
    Traffic take() { return std::exchange(traffic_, {}); }

  private:
    char const* content(ConstView view) const {
        if (!AddressSpace::holds(view.data)) return "scalars";
        for (auto const& [holds, content] : named_)
            if (holds(view.data)) return content;
        return "activations";
    }

    std::vector<std::pair<std::function<bool(void const*)>, char const*>> named_;
    Traffic traffic_;
};

/// A rank of a group whose other ranks do not exist: sends nothing, waits for nobody.
class CountedHostComm final : public HostComm {
  public:
    CountedHostComm(Axis axis, int size, Ledger& ledger, int rank = 0)
        : axis_(axis), size_(size), ledger_(&ledger), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return size_; }
    void all_reduce(TensorView x, Reduce) override { note(Collective::all_reduce, x, x.bytes()); }
    void all_gather(TensorView all, ConstView part) override { note(Collective::all_gather, all, part.bytes()); }
    void reduce_scatter(TensorView, ConstView all) override { note(Collective::reduce_scatter, all, all.bytes()); }
    void all_to_all(TensorView, ConstView from) override { note(Collective::all_to_all, from, from.bytes()); }
    void exchange(std::span<Outgoing const> sent, std::span<Incoming const>) override {
        for (Outgoing const& message : sent) note(Collective::exchange, message.x, message.x.bytes());
    }
    void broadcast(TensorView x, int) override { note(Collective::broadcast, x, x.bytes()); }
    void barrier() override {}
    std::unique_ptr<HostComm> split(int, int, Axis) override {
        fail(Category::internal, "a group of {} ranks that do not exist has no parts", size_);
    }

  private:
    void note(Collective collective, ConstView whole, int64_t brought) {
        ledger_->add(axis_, size_, collective, whole, brought);
    }

    Axis axis_;
    int size_;
    Ledger* ledger_;
    int rank_;
};

/// The same for tensors of a device: notes what a backend is asked to send, and takes the memory and the time that it
/// takes.
class CountedComm final : public Comm {
  public:
    CountedComm(std::unique_ptr<HostComm> host, Axis axis, int stride, bool sums_in_rank_order, ClockedQueues& clocks)
        : Comm(std::move(host), axis), stride_(stride), sums_in_rank_order_(sums_in_rank_order), clocks_(&clocks) {}

  protected:
    void queue_all_reduce(Queue& queue, TensorView x, Reduce op) override {
        host().all_reduce(x, op);
        pass(queue, Collective::all_reduce, x.bytes());
    }
    void queue_all_gather(Queue& queue, TensorView all, ConstView part) override {
        host().all_gather(all, part);
        pass(queue, Collective::all_gather, part.bytes());
    }
    void queue_reduce_scatter(Queue& queue, TensorView part, ConstView all) override {
        bool const in_place = all.data <= part.data && part.data < all.data + all.bytes();
        if (sums_in_rank_order_ && &queue != &queue.device().queue())
            queue.workspace(static_cast<size_t>(all.bytes()));
        else if (in_place && queue.device().is_host())
            queue.workspace(static_cast<size_t>(part.bytes()));
        host().reduce_scatter(part, all);
        pass(queue, Collective::reduce_scatter, all.bytes());
    }
    void queue_all_to_all(Queue& queue, TensorView to, ConstView from) override {
        host().all_to_all(to, from);
        pass(queue, Collective::all_to_all, from.bytes());
    }
    void queue_exchange(Queue& queue, std::span<Outgoing const> sent, std::span<Incoming const> received) override {
        host().exchange(sent, received);
        for (Outgoing const& message : sent) pass(queue, Collective::exchange, message.x.bytes());
    }
    void queue_broadcast(Queue& queue, TensorView x, int root) override {
        host().broadcast(x, root);
        pass(queue, Collective::broadcast, x.bytes());
    }

  private:
    void pass(Queue& queue, Collective collective, int64_t brought) {
        clocks_->collective(queue, axis(), collective, brought, size(), stride_);
    }

    int stride_;
    bool sums_in_rank_order_;  ///< those of lanes, as NCCL among ranks of one host, which takes memory for all parts
    ClockedQueues* clocks_;
};

/// Of the first ranks, but for that of the context axis, which the caller names.
class CountedGroups final : public GroupMaker {
  public:
    CountedGroups(Ledger& ledger, MeshShape const& shape, int context_rank, bool sums_in_rank_order,
                  ClockedQueues& clocks)
        : ledger_(&ledger),
          shape_(shape),
          context_rank_(context_rank),
          sums_in_rank_order_(sums_in_rank_order),
          clocks_(&clocks) {}
    std::unique_ptr<Comm> make(Group const& group) override {
        if (group.size == 1) return make_single_comm(group.axis);
        bool const outer = group.axis == Axis::data;
        int const stride = group.axis == Axis::tensor ? 1 : outer ? shape_.tp * shape_.cp : shape_.tp;
        bool const of_context = group.axis == Axis::context || group.axis == Axis::data_context;
        auto host = std::make_unique<CountedHostComm>(group.axis, group.size, *ledger_, of_context ? context_rank_ : 0);
        return std::make_unique<CountedComm>(std::move(host), group.axis, stride, sums_in_rank_order_, *clocks_);
    }

  private:
    Ledger* ledger_;
    MeshShape shape_;
    int context_rank_;
    bool sums_in_rank_order_;
    ClockedQueues* clocks_;
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

/// The traffic of `steps` micro-batches more than `one` has, each of which adds what `two` has more than `one`.
Traffic extrapolate(Traffic const& one, Traffic const& two, int64_t steps) {
    Traffic all = one;
    for (auto const& [kind, sent] : two) {
        Sent& entry = all[kind];
        Sent const first = entry;
        entry.calls += steps * (sent.calls - first.calls);
        entry.bytes += static_cast<double>(steps) * (sent.bytes - first.bytes);
    }
    return all;
}

/// Whether the GPU of the rates, or of this machine, runs kernels for Hopper; assumed where no GPU is here.
bool on_hopper(RunOptions const& options, DeviceRates const* rates) {
    if (rates != nullptr) return rates->hopper;
    int const major = takes_gpu(options.device) ? cuda_compute_major(options.gpu) : 0;
    return major == 0 || major == kHopperMajor;
}

/// Of a step of `accumulation` micro-batches that follows another one. `batches` holds one or two.
StepTime timed(auto const& play, ClockedQueues& clocks, std::vector<Batch>& batches, int64_t accumulation) {
    auto const step = [&] {
        play(0);
        clocks.take();
        play(0);
        return clocks.take();
    };
    StepTime const whole = step();
    if (accumulation == 1) return whole;
    batches.pop_back();
    StepTime const one = step();
    auto const more = static_cast<double>(accumulation - 2);
    return StepTime(whole).add(whole, more).add(one, -more);
}

}  // namespace

StepCost step_cost(RunOptions const& options, int world_size, DeviceRates const* rates, std::optional<int> rank) {
    MeshShape const shape = resolve_mesh(options.parallel, world_size);
    int const context_rank = rank ? *rank / shape.tp % shape.cp : shape.cp - 1;
    Ledger ledger;
    CountedHostComm world(Axis::all, world_size, ledger);
    auto const files = make_file_system();
    auto device = std::make_unique<AddressSpace>(rates == nullptr && !takes_gpu(options.device), rates);
    ClockedQueues& clocks = device->clocks();
    bool const sums_in_rank_order =
        !device->is_host() && options.parallel.comm != CommChoice::mpi &&
        (rates != nullptr ? world_size <= rates->gpus_per_host : foreseen_on_one_host(world_size));
    auto owned = std::make_unique<DryOps>(*device, cuda_options(options), on_hopper(options, rates));
    DryOps const& ops = *owned;
    Session session(options,
                    Mesh(options.parallel, world,
                         std::make_unique<CountedGroups>(ledger, shape, context_rank, sums_in_rank_order, clocks)),
                    {std::move(device), std::move(owned)}, *files);
    Learner learner(session);
    ledger.name([&](void const* address) { return session.model_weights().holds(address); }, "weights");
    ledger.name([&](void const* address) { return learner.gradients().holds(address); }, "gradients");

    std::vector<Batch> batches = {full_documents(options.train.micro_batch_size, options.data.sequence_length)};
    auto const play = [&](int64_t step) {
        RunState state;
        state.step = step;
        learner.step(batches, state);
        learner.agree({});
        return ledger.take();
    };
    if (session.frozen_layout() != nullptr) play(0);  // only the first step gathers frozen weights
    Traffic const one = play(0);
    // One step of each kind is enough, however often the schedule switches.
    for (AttentionKind const kind : {AttentionKind::full, AttentionKind::moba}) {
        auto const at = std::ranges::find(options.attention.schedule, kind, &AttentionSwitch::kind);
        if (at != options.attention.schedule.end()) play(at->step);
    }
    int64_t const samples = options.train.micro_batch_size * session.mesh().shape().dp;
    int64_t const accumulation = options.train.global_batch_size / samples;
    if (accumulation > 1) batches.push_back(batches.front());
    Traffic const two = accumulation > 1 ? play(0) : one;
    StepTime time;
    if (rates != nullptr) time = timed(play, clocks, batches, accumulation);
    Arena const& arena = session.arena();
    return {.memory = {.weights = session.model_weights().bytes(),
                       .gradients = learner.gradients().bytes(),
                       .optimizer = learner.optimizer_bytes(),
                       .buckets = static_cast<int64_t>(clocks.workspace_bytes()),
                       .gathered = session.mesh().cp().kept_bytes(),
                       .scratch = ops.scratch_bytes(),
                       .step = arena.peak_bytes(),
                       .activations = arena.peak_bytes(Use::activations),
                       .logits = arena.peak_bytes(Use::logits),
                       .messages = arena.peak_bytes(Use::communication),
                       .host = session.model().offloaded_bytes() + learner.optimizer_host_bytes(),
                       .save = value_bytes(learner.tensors(learner.owned())),
                       .context = takes_gpu(options.device) || rates != nullptr ? kContextBytes : 0},
            .sent = extrapolate(one, two, accumulation - 1),
            .time = time};
}

}  // namespace perigee
