// Control: what the ranks of a group tell each other from memory of the host. Every call returns when it is done.
// Backends: one rank (no library), MPI. Tensors on a device travel by comm/comm.h.
//
// Every rank of the group makes the same calls in the same order. Failures throw Category::communication.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/host_board.h"
#include "tensor/tensor.h"

namespace perigee {

enum class Reduce { sum, max, min };

/// A message to a rank of the group, and one from a rank.
struct Outgoing {
    ConstView x;
    int to = 0;
};
struct Incoming {
    TensorView x;
    int from = 0;
};

class HostComm {
  public:
    virtual ~HostComm() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;

    /// In place; f32, f64, i32 or i64. For a given size and layout the order of additions is fixed.
    virtual void all_reduce(TensorView x, Reduce op = Reduce::sum) = 0;
    /// `all` holds size() equal parts in rank order; `part` may be this rank's.
    virtual void all_gather(TensorView all, ConstView part) = 0;
    /// `part` receives this rank's share of the sum of `all`, which holds size() equal parts. They share no memory.
    virtual void reduce_scatter(TensorView part, ConstView all) = 0;
    /// Part i of `from` goes to rank i; part i of `to` came from rank i.
    virtual void all_to_all(TensorView to, ConstView from) = 0;
    /// All messages at once. Messages between two ranks are matched in the order in which each rank lists them.
    virtual void exchange(std::span<Outgoing const> sent, std::span<Incoming const> received) = 0;
    virtual void broadcast(TensorView x, int root) = 0;
    virtual void barrier() = 0;
    /// A new group of the ranks that give the same color, ordered by `key`; `axis` is its name.
    virtual std::unique_ptr<HostComm> split(int color, int key, Axis axis = Axis::all) = 0;

    /// This rank's entry on the board of its host; null where there is none.
    virtual RankStatus* status() const { return nullptr; }

    // Values.
    double sum(double x);
    int64_t sum(int64_t x);
    int64_t max(int64_t x);
    bool any(bool x);
    std::string broadcast_text(std::string text, int root);
    /// Every rank's text, in rank order, on every rank.
    std::vector<std::string> gather_text(std::string const& text);
};

std::unique_ptr<HostComm> make_single_host_comm();

}  // namespace perigee
