// A group of ranks that counts what this rank brings to each kind of collective.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "comm/comm.h"

namespace perigee::testing {

/// Calls and bytes of the views a rank brings, by the name of the collective. Of an exchange or a reduce_scatter over n
/// ranks 1 / n stays on the rank; what all_gather brings goes to every other rank.
struct CommCount {
    int64_t calls = 0;
    int64_t bytes = 0;
    bool operator==(CommCount const&) const = default;
};
using CommCounts = std::map<std::string, CommCount>;

/// Groups split off count into the same counts.
class CountingComm final : public Comm {
  public:
    /// `inner` and `counts` outlive the group.
    CountingComm(Comm& inner, CommCounts& counts) : inner_(&inner), counts_(&counts) {}
    CountingComm(std::unique_ptr<Comm> inner, CommCounts& counts)
        : owned_(std::move(inner)), inner_(owned_.get()), counts_(&counts) {}

    int rank() const override { return inner_->rank(); }
    int size() const override { return inner_->size(); }

    void all_reduce(TensorView x, Reduce op) override {
        count("all_reduce", x);
        inner_->all_reduce(x, op);
    }
    void all_gather(TensorView all, ConstView part) override {
        count("all_gather", part);
        inner_->all_gather(all, part);
    }
    void reduce_scatter(TensorView part, ConstView all) override {
        count("reduce_scatter", all);
        inner_->reduce_scatter(part, all);
    }
    void all_to_all(TensorView to, ConstView from) override {
        count("all_to_all", from);
        inner_->all_to_all(to, from);
    }
    void broadcast(TensorView x, int root) override {
        count("broadcast", x);
        inner_->broadcast(x, root);
    }
    void barrier() override { inner_->barrier(); }
    std::unique_ptr<Comm> split(int color, int key) override {
        return std::make_unique<CountingComm>(inner_->split(color, key), *counts_);
    }

  private:
    void count(char const* kind, ConstView brought) {
        CommCount& entry = (*counts_)[kind];
        ++entry.calls;
        entry.bytes += brought.bytes();
    }

    std::unique_ptr<Comm> owned_;
    Comm* inner_;
    CommCounts* counts_;
};

}  // namespace perigee::testing
