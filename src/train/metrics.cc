#include "train/metrics.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "train/progress.h"

namespace perigee {

namespace {

/// JSON has no NaN or infinity: they become null.
std::string number(double x) { return std::isfinite(x) ? fmt::format("{:.17g}", x) : "null"; }

}  // namespace

int64_t resident_bytes() {
    // /proc is the kernel, not a disk: no place for faults to be injected.
    std::FILE* file = std::fopen("/proc/self/statm", "r");
    if (file == nullptr) return 0;
    long total = 0, resident = 0;
    int const read = std::fscanf(file, "%ld %ld", &total, &resident);
    std::fclose(file);
    return read == 2 ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

std::string log_line(StepReport const& r, double eta_seconds) {
    double const rate = static_cast<double>(r.tokens) / r.seconds;
    double const tflops = r.flops / r.seconds / r.ranks * 1e-12;
    return fmt::format(
        "step: {}  loss: {:.5f}  grad_norm: {:.4f}  lr: {:.1e}  tokens/s: {}  tflops: {:.3f}  mfu: n/a  "
        "mem: {}  eta: {}{}",
        r.step, r.loss, r.grad_norm, r.lr, format_count(static_cast<int64_t>(rate)), tflops,
        format_bytes(resident_bytes()), format_duration(eta_seconds), r.skipped ? "  SKIPPED" : "");
}

std::string to_json(StepReport const& r) {
    std::string const share = r.attended_share ? fmt::format(R"("attended_share":{},)", number(*r.attended_share)) : "";
    return fmt::format(
        R"({{"step":{},"loss":{},"perplexity":{},"grad_norm":{},"lr":{},"skipped":{},"tokens":{},"loss_weight":{},"consumed_samples":{},{}"seconds":{:.6g},"tokens_per_s":{:.6g},"tflops":{:.6g},"memory_bytes":{}}})",
        r.step, number(r.loss), number(std::exp(r.loss)), number(r.grad_norm), number(r.lr), r.skipped, r.tokens,
        number(r.loss_weight), r.consumed_samples, share, r.seconds, static_cast<double>(r.tokens) / r.seconds,
        r.flops / r.seconds / r.ranks * 1e-12, resident_bytes());
}

std::string to_json(EvalReport const& r) {
    std::string text =
        fmt::format(R"({{"step":{},"eval_loss":{},"eval_perplexity":{},"eval_accuracy":{},"eval_loss_weight":{})",
                    r.step, number(r.loss), number(std::exp(r.loss)), number(r.accuracy), number(r.loss_weight));
    if (r.bits_per_byte) text += fmt::format(R"(,"eval_bits_per_byte":{})", number(*r.bits_per_byte));
    for (size_t i = 0; i < r.layers.size(); ++i) {
        text += fmt::format(R"(,"eval_reach_{}":{})", i, number(r.layers[i].reach));
        if (auto const& recall = r.layers[i].gate_recall)
            text += fmt::format(R"(,"eval_gate_recall_{}":{})", i, number(*recall));
    }
    return text + "}";
}

}  // namespace perigee
