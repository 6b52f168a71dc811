// Collectives on a group of ranks. Backends: one rank (no library), MPI (host memory), later NCCL.
// Every rank of the group calls the same collectives in the same order. Failures throw Category::communication.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace perigee {

enum class Reduce { sum, max, min };

class Comm {
  public:
    virtual ~Comm() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;

    /// In place; f32, f64, i32 or i64. For a given size and layout the order of additions is fixed.
    virtual void all_reduce(TensorView x, Reduce op = Reduce::sum) = 0;
    /// `all` holds size() equal parts in rank order.
    virtual void all_gather(TensorView all, ConstView part) = 0;
    /// `part` receives this rank's share of the sum of `all`, which holds size() equal parts.
    virtual void reduce_scatter(TensorView part, ConstView all) = 0;
    /// Part i of `from` goes to rank i; part i of `to` came from rank i.
    virtual void all_to_all(TensorView to, ConstView from) = 0;
    virtual void broadcast(TensorView x, int root) = 0;
    virtual void barrier() = 0;
    /// A new group of the ranks that give the same color, ordered by `key`.
    virtual std::unique_ptr<Comm> split(int color, int key) = 0;

    // Small host-side conveniences over the above.
    double sum(double x);
    int64_t sum(int64_t x);
    int64_t max(int64_t x);
    bool any(bool x);
    std::string broadcast_text(std::string text, int root);
    /// Every rank's text, in rank order, on every rank.
    std::vector<std::string> gather_text(std::string const& text);
};

std::unique_ptr<Comm> make_single_comm();

}  // namespace perigee
