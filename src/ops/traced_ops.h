// Ops that note every operation in the trace of the device while it runs.
#pragma once

#include <memory>
#include <utility>

#include "ops/observed_ops.h"

namespace perigee {

class TracedOps final : public ObservedOps {
  public:
    explicit TracedOps(std::unique_ptr<Ops> inner) : ObservedOps(*inner), owned_(std::move(inner)) {}

    void run(Operation const& operation) override {
        if (!device().trace().running()) return ObservedOps::run(operation);
        InSpan const span(device().queue(), name_of(operation));
        ObservedOps::run(operation);
    }
    /// One by one while the trace runs: a graph shows none of its operations.
    void repeat(std::span<int64_t const> key, std::function<void()> const& body) override {
        if (device().trace().running()) return body();
        ObservedOps::repeat(key, body);
    }

  private:
    std::unique_ptr<Ops> owned_;
};

}  // namespace perigee
