#include "train/metrics.h"

#include <fmt/format.h>
#include <cmath>
#include <utility>

namespace perigee {

namespace {

/// JSON has no NaN or infinity: they become null.
std::string number(double x) { return std::isfinite(x) ? fmt::format("{:.17g}", x) : "null"; }

}  // namespace

double tokens_per_second(StepReport const& r) { return static_cast<double>(r.tokens) / r.seconds; }

std::optional<double> model_flops_utilisation(StepReport const& r) {
    if (!r.peak_flops) return std::nullopt;
    return r.flops / r.seconds / r.ranks / *r.peak_flops;
}

std::string to_json(StepReport const& r) {
    std::string text = fmt::format(
        R"({{"step":{},"loss":{},"perplexity":{},"grad_norm":{},"lr":{},"skipped":{},"tokens":{},"loss_weight":{},"consumed_samples":{})",
        r.step, number(r.loss), number(std::exp(r.loss)), number(r.grad_norm), number(r.lr), r.skipped, r.tokens,
        number(r.loss_weight), r.consumed_samples);
    if (r.judged.spike) text += fmt::format(R"(,"spike_sigmas":{})", number(r.judged.spike->sigmas()));
    text += fmt::format(R"(,"tokens_so_far":{},"epochs_so_far":{:.6g})", r.tokens_so_far, r.epochs_so_far);
    if (r.attended_share) text += fmt::format(R"(,"attended_share":{})", number(*r.attended_share));
    for (size_t layer = 0; layer < r.precision.size(); ++layer)
        for (size_t i = 0; i < kOperands; ++i) {
            auto const& of = r.precision[layer].operands[i];
            if (!of) continue;
            char const* const name = to_string(static_cast<Operand>(i));
            for (auto const& [measure, value] :
                 {std::pair{"peak", of->peak}, std::pair{"underflow", of->underflow}, std::pair{"top", of->top}})
                text += fmt::format(R"(,"fp8_{}_{}_{}":{})", name, measure, layer, number(value));
        }
    for (size_t layer = 0; layer < r.participation.size(); ++layer)
        if (auto const& share = r.participation[layer])
            text += fmt::format(R"(,"participation_{}":{})", layer, number(*share));
    text += fmt::format(R"(,"seconds":{:.6g},"tokens_per_s":{:.6g},"tflops":{:.6g})", r.seconds, tokens_per_second(r),
                        r.flops / r.seconds / r.ranks * 1e-12);
    if (auto const mfu = model_flops_utilisation(r)) text += fmt::format(R"(,"mfu":{:.6g})", *mfu);
    for (size_t phase = 1; phase < kPhases; ++phase)  // but `none`
        text += fmt::format(R"(,"{}_s":{:.6g})", to_string(static_cast<Phase>(phase)), r.phases.at(phase));
    return text + fmt::format(R"(,"memory_bytes":{},"memory_peak_bytes":{}}})", r.memory.used, r.memory.peak);
}

std::string to_json(EvalReport const& r) {
    std::string text =
        fmt::format(R"({{"step":{},"eval_loss":{},"eval_perplexity":{},"eval_accuracy":{},"eval_loss_weight":{})",
                    r.step, number(r.loss), number(std::exp(r.loss)), number(r.accuracy), number(r.loss_weight));
    if (!r.data.empty()) text += fmt::format(R"(,"eval_data":"{}")", r.data);
    if (r.bits_per_byte) text += fmt::format(R"(,"eval_bits_per_byte":{})", number(*r.bits_per_byte));
    for (size_t i = 0; i < r.layers.size(); ++i) {
        text += fmt::format(R"(,"eval_reach_{}":{})", i, number(r.layers[i].reach));
        if (auto const& recall = r.layers[i].gate_recall)
            text += fmt::format(R"(,"eval_gate_recall_{}":{})", i, number(*recall));
        if (auto const& blocks = r.layers[i].group_blocks)
            text += fmt::format(R"(,"eval_group_blocks_{}":{})", i, number(*blocks));
    }
    return text + "}";
}

}  // namespace perigee
