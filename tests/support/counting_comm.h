// A group of ranks that counts what this rank brings to each kind of collective.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "comm/host_comm.h"

namespace perigee::testing {

/// Calls, and bytes of the views a rank brings. Of an exchange or a reduce_scatter over n ranks 1 / n stays on the
/// rank; what all_gather brings goes to every other rank.
struct CommCount {
    int64_t calls = 0;
    int64_t bytes = 0;
    int64_t largest = 0;  ///< of one call
    int ranks = 1;
    bool operator==(CommCount const&) const = default;
};
using CommCounts = std::map<std::string, CommCount>;

/// Counts under "all_reduce", "all_gather" and so on; those of a group that was split off under "tensor all_reduce" and
/// so on, by its axis.
class CountingComm final : public HostComm {
  public:
    /// Distinguishes counts of one collective by the memory that is sent: "all_reduce scalars".
    using Classify = std::function<std::string(ConstView)>;

    /// `inner` and `counts` outlive the group.
    CountingComm(HostComm& inner, CommCounts& counts, Classify classify = {})
        : inner_(&inner), counts_(&counts), classify_(std::move(classify)) {}

    int rank() const override { return inner_->rank(); }
    int size() const override { return inner_->size(); }

    void all_reduce(TensorView x, Reduce op) override {
        count("all_reduce", x, x);
        inner_->all_reduce(x, op);
    }
    void all_gather(TensorView all, ConstView part) override {
        count("all_gather", part, all);
        inner_->all_gather(all, part);
    }
    void reduce_scatter(TensorView part, ConstView all) override {
        count("reduce_scatter", all, all);
        inner_->reduce_scatter(part, all);
    }
    void all_to_all(TensorView to, ConstView from) override {
        count("all_to_all", from, from);
        inner_->all_to_all(to, from);
    }
    void broadcast(TensorView x, int root) override {
        count("broadcast", x, x);
        inner_->broadcast(x, root);
    }
    void barrier() override { inner_->barrier(); }
    void exchange(std::span<Outgoing const> sent, std::span<Incoming const> received) override {
        for (Outgoing const& message : sent) count("exchange", message.x, message.x);
        inner_->exchange(sent, received);
    }
    std::unique_ptr<HostComm> split(int color, int key, Axis axis) override {
        auto part = std::make_unique<CountingComm>(*this);
        part->owned_ = inner_->split(color, key, axis);
        part->inner_ = part->owned_.get();
        part->label_ = fmt::format("{} ", to_string(axis));
        return part;
    }

  private:
    void count(char const* kind, ConstView brought, ConstView whole) {
        std::string const name = fmt::format("{}{}", label_, kind);
        CommCount& entry = (*counts_)[classify_ ? fmt::format("{} {}", name, classify_(whole)) : name];
        ++entry.calls;
        entry.bytes += brought.bytes();
        entry.largest = std::max(entry.largest, brought.bytes());
        entry.ranks = size();
    }

    std::shared_ptr<HostComm> owned_;
    HostComm* inner_;
    CommCounts* counts_;
    Classify classify_;
    std::string label_;
};

}  // namespace perigee::testing
