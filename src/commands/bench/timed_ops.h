// Ops that time every call of another Ops: the per-operation table of bench_step.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "ops/observed_ops.h"

namespace perigee {

class TimedOps : public ObservedOps {
  public:
    using ObservedOps::ObservedOps;

    struct Entry {
        int64_t calls = 0;
        double seconds = 0;
        double blas_seconds = 0;  ///< of them inside OpenBLAS
    };
    std::map<std::string, Entry> const& table() const { return table_; }
    void clear() { table_.clear(); }
    /// Whether the time of a call ends when the device has finished it, or when the call returns.
    void wait(bool on) { waits_ = on; }

    /// Waiting needs one operation at a time.
    void repeat(std::span<int64_t const> key, std::function<void()> const& body) override {
        if (waits_)
            body();
        else
            ObservedOps::repeat(key, body);
    }
    void run(Operation const& operation) override {
        double const blas = host_matrix_clock().seconds;
        auto const start = std::chrono::steady_clock::now();
        ObservedOps::run(operation);
        if (waits_) device().synchronize();
        std::chrono::duration<double> const elapsed = std::chrono::steady_clock::now() - start;
        auto const* const product = std::get_if<MatMul>(&operation);
        auto const* const quantised = std::get_if<QuantMatMul>(&operation);
        bool const of_weights =
            product != nullptr ? product->accumulate : quantised != nullptr && quantised->accumulate;
        std::string const name = name_of(operation);
        Entry& entry = table_[of_weights ? name + " (weight gradients)" : name];
        ++entry.calls;
        entry.seconds += elapsed.count();
        entry.blas_seconds += host_matrix_clock().seconds - blas;
    }

  private:
    std::map<std::string, Entry> table_;
    bool waits_ = false;
};

}  // namespace perigee
