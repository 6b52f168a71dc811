// What a step reports, as a log line for people and as one JSON object for tools.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace perigee {

struct StepReport {
    int64_t step = 0;  ///< steps done, this one included
    double loss = 0;   ///< weighted mean nll over the global batch
    double grad_norm = 0;
    double lr = 0;
    bool skipped = false;          ///< not finite: the weights did not move
    int64_t tokens = 0;            ///< of the global batch
    double loss_weight = 0;        ///< sum of its loss weights
    int64_t consumed_samples = 0;  ///< after this step
    double seconds = 0;
    double flops = 0;  ///< executed, all ranks: causal attention over real documents, MoBA's blocks and gate
    int ranks = 1;
    std::optional<double> attended_share =
        {};  ///< of the causal keys, in MoBA layers: executed pairs over causal pairs
};

/// What one layer's attention means for learning, see model/reach.h.
struct LayerReach {
    double reach = 0;                   ///< share of the tokens that receive gradient as they enter the layer
    std::optional<double> gate_recall;  ///< share of the needed blocks that MoBA chose, where it is known
};

struct EvalReport {
    int64_t step = 0;
    double loss = 0;
    double accuracy = 0;  ///< share of the loss weight on tokens whose target is the likeliest
    double loss_weight = 0;
    std::optional<double> bits_per_byte = {};  ///< of the text that the targets stand for, where it is known
    std::vector<LayerReach> layers = {};       ///< with eval.reach
};

/// "step: 120  loss: 3.21045  grad_norm: 0.8123  lr: 3.0e-04  tokens/s: 12,345  ..."; tflops are per rank.
std::string log_line(StepReport const& report, double eta_seconds);
std::string to_json(StepReport const& report);  ///< losses with 17 significant digits
std::string to_json(EvalReport const& report);

/// Memory this process holds, in bytes.
int64_t resident_bytes();

}  // namespace perigee
