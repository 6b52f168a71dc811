#include "comm/nccl/nccl_groups.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <vector>

#include "comm/journal.h"
#include "comm/nccl/communicator.h"
#include "device/cuda/cuda_device.h"
#include "kernels/flat/flat.h"

namespace perigee {

namespace {

ncclDataType_t nccl_type(DType dtype) {
    switch (dtype) {
        case DType::f32:
            return ncclFloat32;
        case DType::f64:
            return ncclFloat64;
        case DType::bf16:
            return ncclBfloat16;
        case DType::i32:
            return ncclInt32;
        case DType::i64:
            return ncclInt64;
        case DType::u8:
            return ncclUint8;
    }
    fail(Category::internal, "unknown dtype");
}

ncclRedOp_t nccl_op(Reduce op) {
    switch (op) {
        case Reduce::sum:
            return ncclSum;
        case Reduce::max:
            return ncclMax;
        case Reduce::min:
            return ncclMin;
    }
    fail(Category::internal, "unknown reduction");
}

size_t count(ConstView x) { return static_cast<size_t>(x.size()); }

/// All communicators of a job, and what they have queued.
struct NcclJob {
    RankStatus* status;
    CudaDevice& device;
    bool one_host;   ///< all ranks run on it
    bool registers;  ///< memory of Comm::allocate
    Journal journal;
    std::mutex mutex;
    std::vector<Communicator const*> communicators;

    void add(Communicator const& communicator) {
        std::scoped_lock const lock(mutex);
        communicators.push_back(&communicator);
    }
    /// Nobody asks about it any more.
    void remove(Communicator const& communicator) {
        std::scoped_lock const lock(mutex);
        std::erase(communicators, &communicator);
    }
    std::string failure() {
        if (status != nullptr) status->on_device.store(journal.first());
        std::scoped_lock const lock(mutex);
        for (Communicator const* const communicator : communicators)
            if (std::string const text = communicator->failure(); !text.empty()) return text;
        return {};
    }
};

/// A communicator that the job knows of while it lives.
class KnownCommunicator {
  public:
    template <class... Args>
    explicit KnownCommunicator(std::shared_ptr<NcclJob> job, Args&&... args)
        : job_(std::move(job)), communicator_(std::forward<Args>(args)...) {
        job_->add(communicator_);
    }
    ~KnownCommunicator() { job_->remove(communicator_); }
    KnownCommunicator(KnownCommunicator const&) = delete;
    KnownCommunicator& operator=(KnownCommunicator const&) = delete;

    Communicator& operator*() { return communicator_; }
    Communicator* operator->() { return &communicator_; }
    NcclJob& job() const { return *job_; }

  private:
    std::shared_ptr<NcclJob> job_;
    Communicator communicator_;
};

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
/// Memory that the other ranks of a communicator on this host can reach.
class Window {
  public:
    Window(std::shared_ptr<KnownCommunicator> communicator, Device& device, size_t bytes)
        : communicator_(std::move(communicator)) {
        if (ncclMemAlloc(&memory_, bytes) != ncclSuccess) {
            Buffer const room(device, bytes);  // throws where there is none
            fail(Category::communication, "ncclMemAlloc of {} bytes failed: {}", bytes, ncclGetLastError(nullptr));
        }
        // Where not all ranks reach each other's memory, NCCL registers nothing.
        (*communicator_)->call("ncclCommWindowRegister", [&](ncclComm_t comm) {
            return ncclCommWindowRegister(comm, memory_, bytes, &window_, NCCL_WIN_COLL_SYMMETRIC);
        });
    }
    ~Window() {
        cudaDeviceSynchronize();
        if (window_ != nullptr)
            (*communicator_)->release([&](ncclComm_t comm) { ncclCommWindowDeregister(comm, window_); });
        ncclMemFree(memory_);
    }
    Window(Window const&) = delete;
    Window& operator=(Window const&) = delete;

    void* memory() const { return memory_; }

  private:
    std::shared_ptr<KnownCommunicator> communicator_;
    void* memory_ = nullptr;
    ncclWindow_t window_ = nullptr;
};
#endif

class NcclComm final : public Comm {
  public:
    NcclComm(std::unique_ptr<HostComm> host, std::shared_ptr<NcclJob> job, Communicator& whole, Group const& group)
        : Comm(std::move(host), group.axis),
          communicator_(std::make_shared<KnownCommunicator>(std::move(job), whole, group.color, group.key, group.axis)),
          job_(communicator_->job()) {}

    void abort() noexcept override { (*communicator_)->abort(); }

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    Buffer allocate(Device& device, size_t bytes) override {
        if (!job_.registers) return Comm::allocate(device, bytes);
        job_.device.use();
        auto const window = std::make_shared<Window>(communicator_, device, std::max<size_t>(bytes, 1));
        return {device, std::shared_ptr<void>(window, window->memory()), bytes};
    }
#endif

  protected:
    void queue_all_reduce(Queue& queue, TensorView x, Reduce op) override {
        if (x.size() == 0) return;
        call("all_reduce", [&](ncclComm_t comm) {
            return ncclAllReduce(x.data, x.data, count(x), nccl_type(x.dtype), nccl_op(op), comm, stream(queue));
        });
    }
    void queue_all_gather(Queue& queue, TensorView all, ConstView part) override {
        if (part.size() == 0) return;
        call("all_gather", [&](ncclComm_t comm) {
            return ncclAllGather(part.data, all.data, count(part), nccl_type(part.dtype), comm, stream(queue));
        });
    }
    void queue_reduce_scatter(Queue& queue, TensorView part, ConstView all) override {
        if (part.size() == 0) return;
        bool const number = part.dtype == DType::f32 || part.dtype == DType::bf16;
        if (number && job_.one_host && &queue != &job_.device.queue()) return sum_in_rank_order(queue, part, all);
        call("reduce_scatter", [&](ncclComm_t comm) {
            return ncclReduceScatter(all.data, part.data, count(part), nccl_type(part.dtype), ncclSum, comm,
                                     stream(queue));
        });
    }
    void queue_all_to_all(Queue& queue, TensorView to, ConstView from) override {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
        if (from.size() == 0) return;
        call("all_to_all", [&](ncclComm_t comm) {
            return ncclAlltoAll(from.data, to.data, count(from) / static_cast<size_t>(size()), nccl_type(from.dtype),
                                comm, stream(queue));
        });
#else
        std::vector<Outgoing> sent;
        std::vector<Incoming> received;
        int64_t const part = to.size() / size();
        TensorView const flat_to = to.reshape({to.size()});
        ConstView const flat_from = from.reshape({from.size()});
        for (int r = 0; r < size(); ++r) {
            sent.push_back({flat_from.rows(r * part, (r + 1) * part), r});
            received.push_back({flat_to.rows(r * part, (r + 1) * part), r});
        }
        queue_exchange(queue, sent, received);
#endif
    }
    void queue_exchange(Queue& queue, std::span<Outgoing const> sent, std::span<Incoming const> received) override {
        call("exchange", [&](ncclComm_t comm) {
            ncclResult_t code = ncclGroupStart();
            for (auto const& [x, to] : sent)
                if (code == ncclSuccess && x.size() > 0)
                    code = ncclSend(x.data, count(x), nccl_type(x.dtype), to, comm, stream(queue));
            for (auto const& [x, from] : received)
                if (code == ncclSuccess && x.size() > 0)
                    code = ncclRecv(x.data, count(x), nccl_type(x.dtype), from, comm, stream(queue));
            ncclResult_t const end = ncclGroupEnd();
            return code != ncclSuccess ? code : end;
        });
    }
    void queue_broadcast(Queue& queue, TensorView x, int root) override {
        if (x.size() == 0) return;
        call("broadcast", [&](ncclComm_t comm) {
            return ncclBroadcast(x.data, x.data, count(x), nccl_type(x.dtype), root, comm, stream(queue));
        });
    }
    void begin_group() override {
        if (ncclGroupStart() != ncclSuccess) fail(Category::communication, "ncclGroupStart failed");
    }
    void end_group() override {
        (*communicator_)->call("group", [](ncclComm_t) { return ncclGroupEnd(); });
    }
    void note(Collective collective, Event const& done) override {
        if (job_.status != nullptr) job_.journal.add(begin_collective(job_.status, collective, axis()), done);
    }

  private:
    /// Beside computation a sum inside NCCL's kernel holds multiprocessors until the last rank is there. So the parts
    /// go to their owners, between registered tensors by copy engines, and each owner adds up what it received. The
    /// same where nothing is registered, for the same bits.
    void sum_in_rank_order(Queue& queue, TensorView part, ConstView all) {
        PERIGEE_CHECK(!grouping(), "a sum in rank order among a group's messages");
        auto const bytes = static_cast<size_t>(all.bytes());
        if (received_.bytes() < bytes) {
            job_.device.synchronize();
            received_ = {};
            received_ = allocate(job_.device, bytes);
        }
        queue.wait(std::exchange(summed_, {}));
        TensorView const received(static_cast<std::byte*>(received_.data()), all.dtype, all.shape);
        queue_all_to_all(queue, received, all);
        auto const sum = [&]<class T>(T* to) {
            kernels::sum_parts(to, received.as<T>(), size(), part.size(), stream(queue));
        };
        part.dtype == DType::f32 ? sum(part.as<float>()) : sum(part.as<bf16>());
        summed_ = queue.record();
    }
    void call(char const* what, std::function<ncclResult_t(ncclComm_t)> const& body) {
        job_.device.use();
        if (grouping()) return (*communicator_)->call_in_group(what, body);
        (*communicator_)->call(what, body);
    }
    static cudaStream_t stream(Queue& queue) {
        auto* const of_gpu = dynamic_cast<CudaQueue*>(&queue);
        PERIGEE_CHECK(of_gpu != nullptr, "NCCL on queue {}, which is not a GPU's", queue.name());
        return of_gpu->stream();
    }

    std::shared_ptr<KnownCommunicator> communicator_;
    NcclJob& job_;
    Buffer received_;  ///< of sum_in_rank_order()
    Event summed_;     ///< received_ is free
};

/// What NCCL is told, unless the user has told it something else.
void set_environment(bool shared_gpus, int rank) {
    auto const set = [](char const* name, std::string const& value) { ::setenv(name, value.c_str(), 0); };
    // Multicast through NVLink is the one path that can leave the switches of a shared machine in a bad state.
    set("NCCL_NVLS_ENABLE", "0");
    // Communicators on several streams run in the order in which the host called them, so none waits for the other.
    set("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
    if (!shared_gpus) return;
    // NCCL refuses two ranks of one host on one GPU. As ranks of different hosts they reach each other by sockets.
    set("NCCL_HOSTID", fmt::format("rank {} process {}", rank, ::getpid()));
    set("NCCL_SOCKET_IFNAME", "lo");
    set("NCCL_NET", "Socket");
    set("NCCL_IB_DISABLE", "1");
    set("NCCL_MNNVL_ENABLE", "0");
}

/// Gathers and sums run beside each other: only since this version does NCCL keep communicators from waiting for each
/// other in turn.
void check_version() {
    constexpr int kOldest = std::max(22600, NCCL_VERSION_CODE / 100 * 100);  // or that of the build, whose calls it has
    int version = 0;
    ncclGetVersion(&version);
    if (version < kOldest)
        fail(Category::config, "NCCL {}.{} is older than {}.{}: install a newer one, or take parallel.comm=mpi",
             version / 10000, version / 100 % 100, kOldest / 10000, kOldest / 100 % 100);
}

/// Whether all ranks run on one host: they see the same boot of its kernel.
bool on_one_host(HostComm& world) {
    std::string own;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> own;
    bool const same = !own.empty() && world.broadcast_text(own, 0) == own;
    return world.max(same ? 0 : 1) == 0;
}

class NcclGroups final : public GroupMaker {
  public:
    NcclGroups(HostComm& world, CudaDevice& device, GpuRanks const& ranks)
        : world_(&world), job_(std::make_shared<NcclJob>(world.status(), device, on_one_host(world))) {
        check_version();
        set_environment(ranks.share, world.rank());
        job_->registers = ranks.register_memory && !ranks.share && job_->one_host;
        device.use();
        std::string bytes(sizeof(ncclUniqueId), '\0');
        ncclUniqueId id{};
        if (world.rank() == 0) {
            if (ncclResult_t const code = ncclGetUniqueId(&id); code != ncclSuccess)
                fail(Category::communication, "ncclGetUniqueId failed: {}", ncclGetLastError(nullptr));
            std::memcpy(bytes.data(), &id, sizeof id);
        }
        bytes = world.broadcast_text(bytes, 0);
        std::memcpy(&id, bytes.data(), sizeof id);
        all_ = std::make_unique<KnownCommunicator>(job_, id, world.size(), world.rank(), Axis::all);
    }

    std::unique_ptr<Comm> make(Group const& group) override {
        if (group.size == 1) return make_single_comm(group.axis);
        auto host = world_->split(group.color, group.key, group.axis);
        job_->device.use();
        return std::make_unique<NcclComm>(std::move(host), job_, **all_, group);
    }
    std::string failure() override { return job_->failure(); }

  private:
    HostComm* world_;
    std::shared_ptr<NcclJob> job_;
    std::unique_ptr<KnownCommunicator> all_;
};

}  // namespace

std::unique_ptr<GroupMaker> make_nccl_groups(HostComm& world, Device& device, GpuRanks const& ranks) {
    auto* const gpu = dynamic_cast<CudaDevice*>(&device);
    PERIGEE_CHECK(gpu != nullptr, "NCCL on {}", device.name());
    return std::make_unique<NcclGroups>(world, *gpu, ranks);
}

}  // namespace perigee
