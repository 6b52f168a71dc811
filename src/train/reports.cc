// What a trainer tells: of the job, of each step, and what evaluations find.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"
#include "ops/gpu_kernels.h"
#include "train/block_map.h"
#include "train/evaluate.h"
#include "train/generate.h"
#include "train/trainer.h"

namespace perigee {

void Trainer::record(Launched const& launched) {
    std::string const devices = hardware(session_);
    if (!folder_) return;
    if (auto const kernels = gpu_kernels(session_.ops().device())) log::info("GPU kernels {}", to_string(*kernels));
    folder_->write_record(run_record(session_, launched,
                                     {.run_id = state_.run_id,
                                      .layout = state_.info.at("layout"),
                                      .data = train_data_->summary(),
                                      .first_step = first_step_},
                                     devices));
}

void Trainer::say_precision() const {
    if (options_.precision.linear == LinearPrecision::bf16) return;
    auto const [tokens, chunk] = tokens_of_rank(options_, mesh_.shape());
    log::info("{:.1f}% of the FLOPs of matrix products are in FP8; `perigee check` lists which",
              100 * fp8_share(options_.precision, options_.model, tokens, chunk, mesh_.shape().tp));
}

void Trainer::say_attention() const {
    AttentionOptions const& attention = options_.attention;
    auto const step = next_moba_step(attention, state_.step);
    if (!folder_ || !step || *step >= options_.train.steps) return;
    Batch const batch = make_batch(*train_data_, state_.consumed_samples, options_.train.micro_batch_size);
    ForwardFlops const flops = forward_flops(options_.model, session_.selections(*step), batch.cu_seqlens);
    if (flops.causal_pairs > 0)
        log::info("MoBA: blocks of {}, top {}: {:.1f}% of the causal keys are attended in the first micro-batch{}",
                  attention.moba.block_size, attention.moba.top_k, 100 * flops.sparse_pairs / flops.causal_pairs,
                  *step > state_.step ? fmt::format("'s documents from step {} on", *step + 1) : "");
    else
        log::warn("{}", *full_attention_warning(attention, 0, 0));
}

void Trainer::report(StepReport const& r) {
    // The first step lays out memory and is no guide to the time left.
    bool const warm = r.step > first_step_ + 1;
    seconds_per_step_ = warm && seconds_per_step_ > 0 ? 0.9 * seconds_per_step_ + 0.1 * r.seconds : r.seconds;
    double const eta = seconds_per_step_ * static_cast<double>(options_.train.steps - r.step);
    if (!folder_) return;
    log_step(r, eta);
    if (auto const warning = full_attention_warning(options_.attention, r.attended_share.value_or(0), 1);
        warning && std::exchange(moba_acts_, false))
        log::warn("step {}: {}", r.step, *warning);
    if (auto const warning = underflow_warning(r); warning && !std::exchange(warned_of_underflow_, true))
        log::warn("step {}: {}", r.step, *warning);
    folder_->append_metrics(to_json(r));
    progress_.update(r.step, options_.train.steps, eta,
                     fmt::format("step {}/{} loss {:.4f}", r.step, options_.train.steps, r.loss));
}

std::optional<std::string> Trainer::underflow_warning(StepReport const& r) {
    constexpr double kMost = 0.01;
    for (size_t layer = 0; layer < r.precision.size(); ++layer)
        for (size_t i = 0; i < kOperands; ++i)
            if (auto const& of = r.precision[layer].operands[i]; of && of->underflow > kMost)
                return fmt::format(
                    "layer {}: {:.1f}% of the {} elements become zero in FP8: precision.bf16_layers "
                    "keeps layers in bf16",
                    layer, 100 * of->underflow, to_string(static_cast<Operand>(i)));
    return std::nullopt;
}

void Trainer::log_step(StepReport const& r, double seconds_left) {
    since_line_.tokens += r.tokens;
    since_line_.flops += r.flops;
    since_line_.seconds += r.seconds;
    LogOptions const& when = options_.log;
    auto const now = std::chrono::steady_clock::now();
    double const since_line = std::chrono::duration<double>(now - last_line_).count();
    bool const due = when.every > 0 ? r.step % when.every == 0 : since_line >= when.seconds;
    bool const judged_skip = r.skipped && r.loss_weight > 0;  // not of a batch without loss
    if (!due && r.step != first_step_ + 1 && r.step != options_.train.steps && !judged_skip) return;
    StepReport mean = std::exchange(since_line_, {});
    mean.ranks = r.ranks;
    mean.peak_flops = r.peak_flops;
    last_line_ = now;
    for (auto const& line : table_.lines({.step = r.step,
                            .loss = r.loss,
                            .grad_norm = r.grad_norm,
                            .lr = r.lr,
                            .tokens_per_s = tokens_per_second(mean),
                            .mfu = model_flops_utilisation(mean),
                            .memory_bytes = r.memory.used,
                            .memory_peak_bytes = r.memory.peak,
                            .seconds_left = seconds_left,
                            .skipped = r.skipped}))
        log::write_styled(line.plain, line.styled);
}

bool Trainer::evaluation_due() const {
    int64_t const every = options_.eval.every;
    return every > 0 && state_.step > 0 && (state_.step % every == 0 || state_.step >= options_.train.steps);
}

bool Trainer::run_evaluation() {
    enter(Section::eval);
    auto const selections = session_.selections(state_.step);
    auto found =
        evaluate(session_, *validation_data_, state_.step, selections, [this] { return evaluation_goes_on(); });
    if (!found) return false;
    EvalReport& r = *found;
    if (options_.eval.reach) {
        enter(Section::eval);
        r.layers = measure_reach(session_, *train_data_, state_.consumed_samples, selections);
    }
    session_.arena().settle();
    log::info("step {}: eval loss {:.4f}, perplexity {:.4f}, accuracy {:.4f}", r.step, r.loss, std::exp(r.loss),
              r.accuracy);
    r.data = held_out_;
    if (folder_) folder_->append_metrics(to_json(r));
    if (options_.eval.blocks)
        if (std::string const map = block_map(session_, *validation_data_, r.step, selections); folder_ && !map.empty())
            folder_->append_blocks(map);
    if (!options_.eval.prompt.empty()) write_sample();
    if (!std::isfinite(r.loss)) return true;
    RunState::Best const now{r.step, r.loss};
    if (saved_step_ == r.step) consider_best(now);
    if (saver_.in_flight() && saver_.step() == r.step) in_flight_loss_ = now;
    return true;
}

bool Trainer::evaluation_goes_on() {
    bool const stop = told_to_stop();
    enter(Section::eval);  // each micro-batch has its limit
    return !stop;
}

void Trainer::write_sample() {
    std::string text;
    generate(session_, state_, options_.eval.prompt, [&](std::string const& more) {
        enter(Section::eval);  // each token has its limit
        text += more;
    });
    if (!folder_) return;
    nlohmann::ordered_json const sample = {
        {"step", state_.step}, {"prompt", options_.eval.prompt}, {"text", std::move(text)}};
    folder_->append_sample(sample.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void Trainer::consider_best(RunState::Best const& now) {
    if (!state_.best || now.loss < state_.best->loss) state_.best = now;
}

}  // namespace perigee
