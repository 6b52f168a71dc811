#include "comm/comm.h"

#include <array>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "comm/checks.h"

namespace perigee {

namespace {

class SingleComm final : public Comm {
  public:
    explicit SingleComm(Axis axis) : Comm(make_single_host_comm(), axis) {}

  protected:
    void queue_all_reduce(Queue&, TensorView, Reduce) override {}
    void queue_all_gather(Queue& queue, TensorView all, ConstView part) override { copy(queue, all, part); }
    void queue_reduce_scatter(Queue& queue, TensorView part, ConstView all) override { copy(queue, part, all); }
    void queue_all_to_all(Queue& queue, TensorView to, ConstView from) override { copy(queue, to, from); }
    void queue_exchange(Queue& queue, std::span<Outgoing const> sent, std::span<Incoming const> received) override {
        PERIGEE_CHECK(sent.size() == received.size(), "{} messages sent, {} received", sent.size(), received.size());
        for (size_t i = 0; i < sent.size(); ++i) {
            detail::check_exchange(received[i].x, sent[i].x, 1);
            copy(queue, received[i].x, sent[i].x);
        }
    }
    void queue_broadcast(Queue&, TensorView, int) override {}

  private:
    static void copy(Queue& queue, TensorView to, ConstView from) {
        if (to.data != from.data) queue.copy(to.data, from.data, static_cast<size_t>(to.bytes()));
    }
};

/// Counts a collective as communication of its axis while it is queued: on the CPU, where the caller has it done, and
/// in the queue of a GPU. One of a GPU's lane goes on beside the phase in which it begins. A trace shows each.
class Counted {
  public:
    Counted(Queue& queue, Comm const& comm, Collective collective) {
        if (comm.size() == 1) return;
        Device& device = queue.device();
        if (device.is_host() || &queue == &device.queue())
            in_phase_.emplace(device.queue(), Phase::communication, static_cast<int>(comm.axis()));
        if (device.trace().running())
            in_span_.emplace(queue, fmt::format("{} {}", to_string(comm.axis()), to_string(collective)));
    }

  private:
    std::optional<InPhase> in_phase_;
    std::optional<InSpan> in_span_;
};

}  // namespace

std::byte* Comm::keep(Device& device, std::string const& name, size_t bytes) {
    Buffer& memory = kept_[name];
    if (memory.bytes() < bytes) {
        memory = {};
        memory = allocate(device, bytes);
    }
    device.settle(memory.data(), memory.bytes());  // of a pass that did not end
    return static_cast<std::byte*>(memory.data());
}

int64_t Comm::kept_bytes() const {
    int64_t sum = 0;
    for (auto const& [name, memory] : kept_) sum += static_cast<int64_t>(memory.bytes());
    return sum;
}

Pending Comm::begun(Queue& queue, Collective collective, std::span<ConstView const> memory) {
    if (grouping_) {
        grouped_memory_.insert(grouped_memory_.end(), memory.begin(), memory.end());
        return {};  // the whole group is done at once
    }
    Event const done = queue.record();
    note(collective, done);
    Device& device = queue.device();
    if (&queue != &device.queue())
        for (ConstView const& view : memory) device.in_flight().add(view.data, static_cast<size_t>(view.bytes()), done);
    return done;
}

Pending Comm::all_reduce(Queue& queue, TensorView x, Reduce op) {
    detail::check_addable(x.dtype);
    Counted const counted(queue, *this, Collective::all_reduce);
    queue_all_reduce(queue, x, op);
    return begun(queue, Collective::all_reduce, std::array<ConstView, 1>{x});
}

Pending Comm::all_gather(Queue& queue, TensorView all, ConstView part) {
    detail::check_parts(all, part, size());
    Counted const counted(queue, *this, Collective::all_gather);
    queue_all_gather(queue, all, part);
    return begun(queue, Collective::all_gather, std::array<ConstView, 2>{all, part});
}

Pending Comm::reduce_scatter(Queue& queue, TensorView part, ConstView all) {
    detail::check_addable(part.dtype);
    detail::check_parts(all, part, size());
    Counted const counted(queue, *this, Collective::reduce_scatter);
    queue_reduce_scatter(queue, part, all);
    return begun(queue, Collective::reduce_scatter, std::array<ConstView, 2>{all, part});
}

Pending Comm::all_to_all(Queue& queue, TensorView to, ConstView from) {
    detail::check_exchange(to, from, size());
    Counted const counted(queue, *this, Collective::all_to_all);
    queue_all_to_all(queue, to, from);
    return begun(queue, Collective::all_to_all, std::array<ConstView, 2>{to, from});
}

namespace {

/// The part of every rank; their sizes add up to that of the view.
template <class View>
std::vector<View> parts(View whole, std::span<int64_t const> sizes, int ranks) {
    PERIGEE_CHECK(std::ssize(sizes) == ranks && std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) == whole.size(),
                  "{} parts of {} elements for {} ranks", sizes.size(), whole.size(), ranks);
    std::vector<View> views;
    View const flat = whole.reshape({whole.size()});
    int64_t begin = 0;
    for (int64_t const size : sizes) {
        views.push_back(flat.rows(begin, begin + size));
        begin += size;
    }
    return views;
}

}  // namespace

Pending Comm::all_to_all(Queue& queue, TensorView to, std::span<int64_t const> to_sizes, ConstView from,
                         std::span<int64_t const> from_sizes) {
    PERIGEE_CHECK(to.dtype == from.dtype, "cannot exchange {} for {}", to_string(from.dtype), to_string(to.dtype));
    Counted const counted(queue, *this, Collective::all_to_all);
    std::vector<Outgoing> sent;
    std::vector<Incoming> received;
    for (ConstView const& part : parts(from, from_sizes, size())) sent.push_back({part, static_cast<int>(sent.size())});
    for (TensorView const& part : parts(to, to_sizes, size()))
        received.push_back({part, static_cast<int>(received.size())});
    queue_exchange(queue, sent, received);
    return begun(queue, Collective::all_to_all, std::array<ConstView, 2>{to, from});
}

Pending Comm::exchange(Queue& queue, std::span<Outgoing const> sent, std::span<Incoming const> received) {
    detail::check_messages(sent, received, size());
    Counted const counted(queue, *this, Collective::exchange);
    if (grouping_) {
        grouped_sent_.insert(grouped_sent_.end(), sent.begin(), sent.end());
        grouped_received_.insert(grouped_received_.end(), received.begin(), received.end());
    } else {
        queue_exchange(queue, sent, received);
    }
    std::vector<ConstView> memory;
    for (Outgoing const& message : sent) memory.push_back(message.x);
    for (Incoming const& message : received) memory.push_back(message.x);
    return begun(queue, Collective::exchange, memory);
}

Pending Comm::send(Queue& queue, ConstView x, int to) {
    Outgoing const message{x, to};
    return exchange(queue, {&message, 1}, {});
}

Pending Comm::receive(Queue& queue, TensorView x, int from) {
    Incoming const message{x, from};
    return exchange(queue, {}, {&message, 1});
}

Pending Comm::broadcast(Queue& queue, TensorView x, int root) {
    detail::check_root(root, size());
    Counted const counted(queue, *this, Collective::broadcast);
    queue_broadcast(queue, x, root);
    return begun(queue, Collective::broadcast, std::array<ConstView, 1>{x});
}

Pending Comm::group(Queue& queue, std::function<void()> const& calls) {
    PERIGEE_CHECK(!grouping_, "a group within a group");
    Counted const counted(queue, *this, Collective::group);
    begin_group();
    grouping_ = true;
    calls();
    auto const sent = std::exchange(grouped_sent_, {});
    auto const received = std::exchange(grouped_received_, {});
    if (!sent.empty() || !received.empty()) queue_exchange(queue, sent, received);
    grouping_ = false;
    end_group();
    return begun(queue, Collective::group, std::exchange(grouped_memory_, {}));
}

std::unique_ptr<Comm> make_single_comm(Axis axis) { return std::make_unique<SingleComm>(axis); }

}  // namespace perigee
