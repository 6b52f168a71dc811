// What several ranks hold alike: weights, moments and gradients that are not sharded, and tensors that tensor
// parallelism does not cut. Hashes of their bits on the device tell whether they still are.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "optim/optimizer.h"
#include "parallel/sharded_gradients.h"
#include "train/session.h"

namespace perigee {

/// A tensor, or a range of it, and which ranks hold the same bits.
struct Replicated {
    StoredTensor tensor;       ///< in memory of the device
    bool over_data = false;    ///< those of dp x cp
    bool over_tensor = false;  ///< those of tp
};

/// All of this rank, on ranks that are to hold the same: the same list. Between steps: the gradients are those of
/// the last step.
std::vector<Replicated> replicated_tensors(Session const& session, AdamWOptimizer const& optimizer,
                                           ShardedGradients const& gradients);

struct Difference {
    std::string tensor;
    /// In the world, ascending: who is in the minority; all ranks that hold the tensor where there is none.
    std::vector<int> suspects;
    std::vector<int> others;  ///< those they were compared with
};

/// The first tensor whose bits differ between ranks that are to hold the same; the same result on every rank. Waits
/// for the device once. Collective.
std::optional<Difference> compare_replicas(Session& session, std::vector<Replicated> const& tensors);

/// "rank 3 (GPU 3 of host n1)", of every rank. Collective.
std::vector<std::string> rank_names(Session const& session);

/// "tensor T of rank 3 (GPU 3 of host n1) differs from that of rank 2 (...)", or where there is no majority "tensor T
/// of rank 0 (...) and of rank 1 (...) differ: one of them is wrong".
std::string to_string(Difference const& difference, std::vector<std::string> const& rank_names);

}  // namespace perigee
