// Collectives over tensors in memory of a device. They are queued and return before they are done: a Pending says when
// that is. Backends: one rank; MPI, over any HostComm and from a GPU through memory of the host; NCCL; and one that
// only counts (app/dry_run.cc).
//
// Every rank of the group makes the same calls in the same order. Until a call is done nobody writes what it reads, or
// touches what it writes; what is queued later in the same queue may. Failures throw Category::communication, at the
// call or where the device is next waited for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/host_comm.h"
#include "device/queue.h"
#include "tensor/tensor.h"

namespace perigee {

/// Reached when the results of a collective are there and its inputs are free.
using Pending = Event;

class Comm {
  public:
    explicit Comm(std::unique_ptr<HostComm> host, Axis axis = Axis::all) : host_(std::move(host)), axis_(axis) {}
    virtual ~Comm() = default;
    Comm(Comm const&) = delete;
    Comm& operator=(Comm const&) = delete;

    int rank() const { return host_->rank(); }
    int size() const { return host_->size(); }
    Axis axis() const { return axis_; }
    /// The same ranks, for values of the host.
    HostComm& host() const { return *host_; }

    /// Memory for tensors of this group's collectives; all ranks ask for the same number of bytes at the same point.
    /// With GpuRanks::register_memory NCCL lets the other ranks reach it: between such tensors copy engines do the work
    /// of all_gather, all_to_all, and reduce_scatter on a lane.
    virtual Buffer allocate(Device& device, size_t bytes) { return {device, bytes}; }
    /// Named memory that this group owns, from allocate(). A later call returns the same memory if it is large enough,
    /// else larger memory without the old values. Only work in the device's queue() may then still use the old memory.
    /// The device outlives the group.
    std::byte* keep(Device& device, std::string const& name, size_t bytes);
    int64_t kept_bytes() const;

    // For a given backend, size and layout the order of additions is fixed. Every addition of bf16 is made in fp32;
    // NCCL rounds after each, MPI once. On a lane, in a job of one host, NCCL's reduce_scatter of fp32 and bf16 adds
    // in rank order and rounds once: it sends each part to its owner, who sums, and keeps memory as large as `all`.

    /// In place; any dtype but u8.
    Pending all_reduce(Queue& queue, TensorView x, Reduce op = Reduce::sum);
    /// `all` holds size() equal parts in rank order; `part` may be this rank's.
    Pending all_gather(Queue& queue, TensorView all, ConstView part);
    /// `part` receives this rank's share of the sum of `all`, which holds size() equal parts. It may be this rank's
    /// part of `all`, whose other parts then hold nothing of use.
    Pending reduce_scatter(Queue& queue, TensorView part, ConstView all);
    /// Part i of `from` goes to rank i; part i of `to` came from rank i. Equal parts.
    Pending all_to_all(Queue& queue, TensorView to, ConstView from);
    /// The same with parts of these many elements, in rank order and without gaps.
    Pending all_to_all(Queue& queue, TensorView to, std::span<int64_t const> to_sizes, ConstView from,
                       std::span<int64_t const> from_sizes);
    /// All messages at once. Messages between two ranks are matched in the order in which each rank lists them.
    Pending exchange(Queue& queue, std::span<Outgoing const> sent, std::span<Incoming const> received);
    Pending send(Queue& queue, ConstView x, int to);
    Pending receive(Queue& queue, TensorView x, int from);
    Pending broadcast(Queue& queue, TensorView x, int root);
    /// Starts the collectives that `calls` makes on this group and queue together, as one: messages need no order, and
    /// small tensors cost less.
    Pending group(Queue& queue, std::function<void()> const& calls);

    /// Ends what is under way, and this group with it, without the other ranks. Any thread may call it.
    virtual void abort() noexcept {}

  protected:
    // What a backend queues; the arguments are checked.
    virtual void queue_all_reduce(Queue& queue, TensorView x, Reduce op) = 0;
    virtual void queue_all_gather(Queue& queue, TensorView all, ConstView part) = 0;
    virtual void queue_reduce_scatter(Queue& queue, TensorView part, ConstView all) = 0;
    virtual void queue_all_to_all(Queue& queue, TensorView to, ConstView from) = 0;
    virtual void queue_exchange(Queue& queue, std::span<Outgoing const> sent, std::span<Incoming const> received) = 0;
    virtual void queue_broadcast(Queue& queue, TensorView x, int root) = 0;
    // Around the calls of a group, whose messages are one exchange at its end.
    virtual void begin_group() {}
    virtual void end_group() {}
    /// `done` is the end of what was queued for this collective.
    virtual void note(Collective, Event const& /*done*/) {}
    bool grouping() const { return grouping_; }

  private:
    /// `memory`: what was queued works on.
    Pending begun(Queue& queue, Collective collective, std::span<ConstView const> memory);

    std::unique_ptr<HostComm> host_;
    Axis axis_;
    std::map<std::string, Buffer> kept_;
    bool grouping_ = false;
    // Of the group's calls.
    std::vector<ConstView> grouped_memory_;
    std::vector<Outgoing> grouped_sent_;
    std::vector<Incoming> grouped_received_;
};

/// A group of this one rank.
std::unique_ptr<Comm> make_single_comm(Axis axis = Axis::all);

/// Collectives of the ranks of `host`, in its memory: directly for tensors on the CPU; those of a GPU go through pinned
/// memory, and the calling thread waits for them. Sums of bf16 are added in rank order and rounded once.
std::unique_ptr<Comm> make_comm_over_host(std::unique_ptr<HostComm> host, Axis axis = Axis::all);

}  // namespace perigee
