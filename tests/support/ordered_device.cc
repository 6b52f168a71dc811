#include "support/ordered_device.h"

#include <algorithm>

#include "ops/operation_views.h"

namespace perigee::testing {

struct OrderedDevice::Point final : Event::Point {
    Point(OrderedQueue const* queue, std::map<OrderedQueue const*, int64_t> clock, double time)
        : of(queue), known(std::move(clock)), seconds(time) {}
    /// Nobody may rely on work being done by chance.
    bool reached() const noexcept override { return false; }
    OrderedQueue const* of;
    std::map<OrderedQueue const*, int64_t> known;
    double seconds;
};

class OrderedDevice::OrderedQueue final : public Queue {
  public:
    OrderedQueue(OrderedDevice& device, std::string name) : Queue(device, std::move(name)), owner_(&device) {}

    Event record() override {
        known[this] = count;
        return Event(std::make_shared<OrderedDevice::Point>(this, known, seconds));
    }
    Event stamp() override { return record(); }
    void wait(Event const& event) override {
        auto const* const point = static_cast<OrderedDevice::Point const*>(event.point());
        if (point == nullptr) return;
        void const* const site = __builtin_return_address(0);
        if (point->of != this && known[point->of] < point->known.at(point->of)) {
            owner_->sites_.insert({site, name() + " for " + point->of->name()});
            Phase const phase = owner_->phases().now();
            if (name() == "compute" && phase != Phase::none && phase != Phase::communication)
                owner_->uncounted_.insert(point->of->name());
        }
        if (site == owner_->dropped_) return;
        for (auto const& [queue, of_queue] : point->known) {
            int64_t& mine = known[queue];
            mine = std::max(mine, of_queue);
        }
        seconds = std::max(seconds, point->seconds);
    }
    void copy(void* to, void const* from, size_t bytes) override {
        auto const size = static_cast<int64_t>(bytes);
        owner_->access(*this, {static_cast<std::byte const*>(from), DType::u8, {size}}, false, "copy");
        owner_->access(*this, {static_cast<std::byte const*>(to), DType::u8, {size}}, true, "copy");
        owner_->spend(*this, owner_->seconds_per_byte_ * static_cast<double>(bytes));
        owner_->host_->copy(to, from, bytes);
    }
    void call(std::function<void()> const& work) override { work(); }
    void synchronize() override {}

    int64_t count = 0;
    double seconds = 0;
    std::map<OrderedQueue const*, int64_t> known;
    std::vector<Access> accesses;

  private:
    OrderedDevice* owner_;
};

OrderedDevice::OrderedDevice(void const* dropped, double seconds_per_byte)
    : dropped_(dropped), seconds_per_byte_(seconds_per_byte) {}
OrderedDevice::~OrderedDevice() { in_flight() = InFlight(); }  // queues end one by one

Queue& OrderedDevice::queue() { return queue_named("compute"); }
Queue& OrderedDevice::lane(std::string const& name, Priority) { return queue_named(name); }

OrderedDevice::OrderedQueue& OrderedDevice::queue_named(std::string const& name) {
    auto const found = std::ranges::find(queues_, name, [](auto const& queue) { return queue->name(); });
    if (found != queues_.end()) return **found;
    return *queues_.emplace_back(std::make_unique<OrderedQueue>(*this, name));
}

void OrderedDevice::access(Queue& queue, ConstView memory, bool writes, std::string const& what) {
    auto& mine = queue_named(queue.name());
    auto const* const begin = memory.data;
    auto const* const end = begin + memory.bytes();
    std::string const label = what + " on " + queue.name();
    for (auto const& other : queues_) {
        if (other.get() == &mine) continue;
        int64_t const done = mine.known[other.get()];
        for (auto it = other->accesses.rbegin(); it != other->accesses.rend() && it->count > done; ++it)
            if ((writes || it->writes) && begin < it->end && it->begin < end) races_.push_back({it->what, label});
    }
    mine.accesses.push_back({++mine.count, begin, end, writes, label});
}

void OrderedDevice::spend(Queue& queue, double seconds) {
    auto& of = queue_named(queue.name());
    of.seconds = std::max(of.seconds, host_seconds_) + seconds;
}

void OrderedDevice::host_waits() {
    auto& compute = queue_named("compute");
    host_seconds_ = std::max(host_seconds_, compute.seconds);
}

void OrderedDevice::copy(void* to, void const* from, size_t bytes) {
    host_waits();
    host_->copy(to, from, bytes);
}

void OrderedDevice::synchronize() {
    for (auto const& queue : queues_) {
        host_seconds_ = std::max(host_seconds_, queue->seconds);
        for (auto const& other : queues_) queue->known[other.get()] = other->count;
    }
}

double OrderedDevice::seconds() const {
    double latest = host_seconds_;
    for (auto const& queue : queues_) latest = std::max(latest, queue->seconds);
    return latest;
}

void OrderedOps::run(Operation const& operation) {
    Queue& queue = device_->queue();
    int64_t bytes = 0;
    each_view(operation, [&](ConstView view, bool writes) {
        device_->access(queue, view, writes, name_of(operation));
        bytes += view.bytes();
    });
    device_->spend(queue, seconds_per_byte_ * static_cast<double>(bytes));
    if (std::holds_alternative<Download>(operation)) device_->host_waits();
    ObservedOps::run(operation);
}

namespace {

class OrderedComm final : public Comm {
  public:
    OrderedComm(std::unique_ptr<HostComm> host, std::unique_ptr<Comm> inner, OrderedDevice& device, double delay,
                int64_t& collectives)
        : Comm(std::move(host), inner->axis()),
          inner_(std::move(inner)),
          device_(&device),
          delay_(delay),
          collectives_(&collectives) {}

  protected:
    void queue_all_reduce(Queue& queue, TensorView x, Reduce op) override {
        touch(queue, "all_reduce", {}, {x});
        inner_->all_reduce(queue, x, op);
    }
    void queue_all_gather(Queue& queue, TensorView all, ConstView part) override {
        touch(queue, "all_gather", {part}, {all});
        inner_->all_gather(queue, all, part);
    }
    void queue_reduce_scatter(Queue& queue, TensorView part, ConstView all) override {
        touch(queue, "reduce_scatter", {all}, {part});
        inner_->reduce_scatter(queue, part, all);
    }
    void queue_all_to_all(Queue& queue, TensorView to, ConstView from) override {
        touch(queue, "all_to_all", {from}, {to});
        inner_->all_to_all(queue, to, from);
    }
    void queue_exchange(Queue& queue, std::span<Outgoing const> sent, std::span<Incoming const> received) override {
        std::vector<ConstView> reads, writes;
        for (Outgoing const& message : sent) reads.push_back(message.x);
        for (Incoming const& message : received) writes.push_back(message.x);
        touch(queue, "exchange", reads, writes);
        inner_->exchange(queue, sent, received);
    }
    void queue_broadcast(Queue& queue, TensorView x, int root) override {
        touch(queue, "broadcast", {}, {x});
        inner_->broadcast(queue, x, root);
    }

  private:
    void touch(Queue& queue, char const* what, std::vector<ConstView> const& reads,
               std::vector<ConstView> const& writes) {
        for (ConstView const& x : reads) device_->access(queue, x, false, what);
        for (ConstView const& x : writes) device_->access(queue, x, true, what);
        if (queue.name() == "compute") return;
        device_->spend(queue, delay_);
        ++*collectives_;
    }

    std::unique_ptr<Comm> inner_;
    OrderedDevice* device_;
    double delay_;
    int64_t* collectives_;
};

class OrderedGroups final : public GroupMaker {
  public:
    OrderedGroups(HostComm& world, OrderedDevice& device, double delay, int64_t& collectives)
        : world_(&world),
          inner_(make_host_groups(world)),
          device_(&device),
          delay_(delay),
          collectives_(&collectives) {}

    std::unique_ptr<Comm> make(Group const& group) override {
        if (group.size == 1) return make_single_comm(group.axis);
        auto host = world_->split(group.color, group.key, group.axis);
        return std::make_unique<OrderedComm>(std::move(host), inner_->make(group), *device_, delay_, *collectives_);
    }

  private:
    HostComm* world_;
    std::unique_ptr<GroupMaker> inner_;
    OrderedDevice* device_;
    double delay_;
    int64_t* collectives_;
};

}  // namespace

std::unique_ptr<GroupMaker> make_ordered_groups(HostComm& world, OrderedDevice& device, double delay,
                                                int64_t& collectives) {
    return std::make_unique<OrderedGroups>(world, device, delay, collectives);
}

}  // namespace perigee::testing
