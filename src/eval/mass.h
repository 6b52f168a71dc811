// How much of full attention's softmax lies in the blocks that a rule selects: whether the gate finds what the queries
// look for, against the nearest blocks, random ones and the best possible choice of as many.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "ops/attention_inputs.h"
#include "ops/ops.h"
#include "tensor/batch.h"

namespace perigee {

/// Tokens of a batch, at most `count`, evenly over those that carry loss and have more past blocks than slots.
std::vector<int64_t> choosing_queries(Batch const& batch, BlockBudget const& budget, int64_t count);

/// Works on the host, in fp32.
class MassMeter {
  public:
    MassMeter();
    ~MassMeter();
    /// Shares of the softmax inside selected blocks, added up over these tokens of the pack and all heads: of the local
    /// block alone, of each rule, and of the best possible choice. The local block counts in all. All rules have this
    /// budget.
    std::vector<double> measure(AttentionInputs const& inputs, std::span<int32_t const> cu_seqlens,
                                std::span<int64_t const> queries, std::span<Selection const> rules,
                                BlockBudget const& budget);

  private:
    std::unique_ptr<Device> device_;
    std::unique_ptr<Ops> ops_;
};

/// Softmax of one query by block: blocks of `size` keys from the first, the last one perhaps shorter. `keys`: rows of
/// q.size() values, `stride` apart.
std::vector<double> block_masses(std::span<float const> q, std::span<float const> keys, int64_t stride, int64_t size,
                                 double scale);

}  // namespace perigee
