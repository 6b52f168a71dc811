// What a step reports, as one JSON object for tools; train/log_table.h is for people.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/memory_in_use.h"
#include "model/precision.h"
#include "train/guard.h"

namespace perigee {

/// Quantised operands of a layer, as this rank computed them; those that the layer has.
struct PrecisionReport {
    std::array<std::optional<OperandReport>, kOperands> operands = {};
};

struct StepReport {
    int64_t step = 0;  ///< steps done, this one included
    double loss = 0;   ///< weighted mean nll over the global batch
    double grad_norm = 0;
    double lr = 0;
    bool skipped = false;  ///< not finite, a spike, or without loss: the weights did not move
    Judgement judged = {};
    int64_t tokens = 0;            ///< of the global batch
    double loss_weight = 0;        ///< sum of its loss weights
    int64_t consumed_samples = 0;  ///< after this step
    double seconds = 0;
    double flops = 0;  ///< of all ranks; docs/runs.md says what counts
    int ranks = 1;
    std::optional<double> peak_flops = {};  ///< of a rank's device, where it is known
    MemoryInUse memory = {};                ///< of this rank's device
    PhaseSeconds phases = {};   ///< of this rank; a GPU's optimizer counts in the step after, see PhaseClock
    int64_t tokens_so_far = 0;  ///< of the run, padding included
    double epochs_so_far = 0;
    std::vector<PrecisionReport> precision = {};  ///< by layer, on steps that report it
    std::optional<double> attended_share =
        {};  ///< of the causal keys, in MoBA layers: executed pairs over causal pairs
    /// By layer, on steps that report it: (sum of |g|)^2 / (T * sum of |g|^2) over the tokens of the global batch,
    /// where g is the gradient of the stream as it enters the layer. None where it is zero or not computed.
    std::vector<std::optional<double>> participation = {};
};

/// What one layer's attention means for learning, see model/reach.h.
struct LayerReach {
    double reach = 0;                   ///< share of the tokens that receive gradient as they enter the layer
    std::optional<double> gate_recall;  ///< share of the needed blocks that MoBA chose, where it is known
    /// Past blocks that the heads of a group select together, relative to those of one head: 1 where they agree, the
    /// number of heads where they all differ.
    std::optional<double> group_blocks;
};

struct EvalReport {
    int64_t step = 0;
    double loss = 0;
    double accuracy = 0;  ///< share of the loss weight on tokens whose target is the likeliest
    double loss_weight = 0;
    std::string data = {};                     ///< held_out_data(), where it is known
    std::optional<double> bits_per_byte = {};  ///< of the text that the targets stand for, where it is known
    std::vector<LayerReach> layers = {};       ///< with eval.reach
};

double tokens_per_second(StepReport const& report);
/// Share of the devices' peak that the step's executed FLOPs are, where the peak is known.
std::optional<double> model_flops_utilisation(StepReport const& report);

std::string to_json(StepReport const& report);  ///< losses with 17 significant digits
std::string to_json(EvalReport const& report);

}  // namespace perigee
