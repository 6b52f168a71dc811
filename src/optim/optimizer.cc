#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

namespace perigee {

namespace {

/// Calls body(begin, end, decays) for every maximal part of `range` whose parameters are all decayed, or all not.
void for_runs(ParamLayout const& layout, FlatRange range, auto&& body) {
    auto const& entries = layout.entries();
    auto const starts_after = [](int64_t element, ParamLayout::Entry const& e) { return element < e.offset; };
    auto entry = std::upper_bound(entries.begin(), entries.end(), range.begin, starts_after) - 1;
    for (int64_t begin = range.begin; begin < range.end;) {
        bool const decay = entry->spec.decay;
        while (entry != entries.end() && entry->offset < range.end && entry->spec.decay == decay) ++entry;
        int64_t const end = std::min(range.end, entry == entries.end() ? layout.size() : entry->offset);
        body(begin, end, decay);
        begin = end;
    }
}

std::vector<FlatRange> ranges_of(std::vector<FlatPart> const& parts) {
    std::vector<FlatRange> ranges;
    for (FlatPart const& part : parts) ranges.push_back(part.range);
    return ranges;
}

DType moments_dtype(OptimizerOptions const& options, Ops& ops) {
    return options.moments == MomentPrecision::bf16 ? DType::bf16 : ops.main_dtype();
}

constexpr double kBelowOne = 1.0 - 1e-9;

}  // namespace

void describe(Schema& schema, OptimizerOptions& options) {
    schema.add("lr", options.lr, above(0), "peak learning rate")
        .add("beta1", options.beta1, between(0, kBelowOne), "decay of the first moment")
        .add("beta2", options.beta2, between(0, kBelowOne), "decay of the second moment")
        .add("eps", options.eps, above(0), "added to the root of the second moment")
        .add("weight_decay", options.weight_decay, at_least(0),
             "decoupled decay of matrices; norms and biases have none")
        .add("max_grad_norm", options.max_grad_norm, at_least(0),
             "gradients are scaled down to this global norm; 0 switches clipping off")
        .add("stochastic_rounding", options.stochastic_rounding,
             "where the model computes in bf16, round its weights up or down at random, so that small updates count on "
             "average; the optimizer keeps fp32 weights either way")
        .add("offload", options.offload,
             "moments wait in pinned memory of the host, from where those of a unit come while the unit before it is "
             "updated; the same bits, 8 bytes a parameter less on the GPU and as many to copy each way in a step")
        .choice("moments", options.moments, {{"fp32", MomentPrecision::fp32}, {"bf16", MomentPrecision::bf16}},
                "type of the stored moments; bf16 uses stochastic rounding, so that small updates count on average, "
                "and saves 4 bytes per parameter; may change where a run resumes");
}

AdamWOptimizer::Packed::Packed(Ops& ops, int64_t elements)
    : memory(ops.device(), static_cast<size_t>(elements * size_of(ops.main_dtype()))),
      view(static_cast<std::byte*>(memory.data()), ops.main_dtype(), {elements}) {
    ops.fill_zero(view);
}

AdamWOptimizer::AdamWOptimizer(OptimizerOptions const& options, ParamLayout const& layout, Ownership ownership,
                               std::vector<FlatPart> weights, Ops& ops, uint64_t seed)
    : options_(options),
      layout_(&layout),
      ownership_(std::move(ownership)),
      ops_(&ops),
      weights_(std::move(weights)),
      seed_(seed),
      moments_(layout, ownership_.updated, ops, {moments_dtype(options, ops), options.offload}) {
    PERIGEE_CHECK(ranges_of(weights_) == ownership_.updated, "weights in {} parts for {} ranges", weights_.size(),
                  ownership_.updated.size());
    if (ops.compute_dtype() != ops.main_dtype()) main_weights_.emplace(ops, total_size(ownership_.updated));
}

void AdamWOptimizer::add_squares(TensorView sum, std::vector<FlatPart> const& grads) {
    for (FlatRange const& owned : ownership_.owned)
        for (FlatPart const& part : grads)
            if (FlatRange const both = intersection(part.range, owned); both.size() > 0)
                ops_->squared_norm(sum, part.of(both));
}

void AdamWOptimizer::update(int unit, std::vector<FlatPart> const& grads, Update const& update) {
    PERIGEE_CHECK(std::isfinite(update.norm), "an update with gradient norm {}", update.norm);
    PERIGEE_CHECK(ranges_of(grads) == ownership_.updated, "gradients in {} parts", grads.size());
    bool const clip = options_.max_grad_norm > 0 && update.norm > options_.max_grad_norm;
    bool const stochastic = rounds() && options_.stochastic_rounding;
    Moments::OfUnit const moments = moments_.need(unit, unit + 1 < layout_->units() ? unit + 1 : -1);
    auto const main = weights();
    for (size_t i = 0; i < grads.size(); ++i) {
        FlatRange const range = intersection(grads[i].range, layout_->unit(unit));
        if (range.size() <= 0) continue;
        for (Run const& run : runs_of(range)) {
            AdamW args{.w = main[i].of(run.range),
                       .m = moments.m[i].of(run.range),
                       .v = moments.v[i].of(run.range),
                       .g = grads[i].of(run.range),
                       .lr = update.lr,
                       .beta1 = options_.beta1,
                       .beta2 = options_.beta2,
                       .eps = options_.eps,
                       .weight_decay = run.decays ? options_.weight_decay : 0.0,
                       .grad_scale = clip ? options_.max_grad_norm / update.norm : 1.0,
                       .step = update.applied + 1,
                       .rounded = rounds() && !stochastic ? weights_[i].of(run.range) : TensorView()};
            if (run.tensor != nullptr) {
                auto const name = fmt::format("{} moments {}", run.tensor->spec.name, update.applied + 1);
                args.random = {seed_, Purpose::rounding, hash_name(name)};
                args.part = run.tensor->part(run.range.begin - run.tensor->offset);
            }
            ops_->adamw(args);
        }
    }
    moments_.release(unit);
    if (stochastic) round_stochastically(layout_->unit(unit), update.applied + 1);
}

std::vector<AdamWOptimizer::Run> AdamWOptimizer::runs_of(FlatRange range) const {
    std::vector<Run> runs;
    if (options_.moments == MomentPrecision::fp32) {
        for_runs(*layout_, range, [&](int64_t begin, int64_t end, bool decays) {
            runs.push_back({{begin, end}, decays, nullptr});
        });
        return runs;
    }
    for (ParamLayout::Entry const& entry : layout_->entries()) {
        FlatRange const part = intersection(range, {entry.offset, entry.offset + entry.local.size()});
        if (part.size() > 0) runs.push_back({part, entry.spec.decay, &entry});
    }
    return runs;
}

void AdamWOptimizer::round_stochastically(FlatRange range, int64_t applied_updates) {
    auto const main = weights();
    for (size_t i = 0; i < main.size(); ++i)
        for (ParamLayout::Entry const& entry : layout_->entries()) {
            FlatRange const tensor{entry.offset, entry.offset + entry.local.size()};
            FlatRange const part = intersection(intersection(main[i].range, range), tensor);
            if (part.size() <= 0) continue;
            uint64_t const stream = hash_name(fmt::format("{} update {}", entry.spec.name, applied_updates));
            ops_->round_stochastically({.to = weights_[i].of(part),
                                        .from = main[i].of(part),
                                        .random = {seed_, Purpose::rounding, stream},
                                        .part = entry.part(part.begin - entry.offset)});
        }
}

void AdamWOptimizer::publish(int64_t applied_updates) {
    if (!rounds()) return;
    if (options_.stochastic_rounding && applied_updates > 0)
        return round_stochastically(layout_->whole(), applied_updates);
    auto const main = weights();
    for (size_t i = 0; i < main.size(); ++i) ops_->copy(weights_[i].values, main[i].values);
}

int64_t AdamWOptimizer::bytes() const { return moments_.bytes() + (rounds() ? main_weights_->view.bytes() : 0); }

std::vector<FlatPart> AdamWOptimizer::weights() const { return rounds() ? parts(main_weights_->view) : weights_; }

std::vector<FlatPart> AdamWOptimizer::parts(TensorView packed) const {
    std::vector<FlatPart> parts;
    int64_t before = 0;
    for (FlatRange const& range : ownership_.updated) {
        parts.push_back({range, packed.rows(before, before + range.size())});
        before += range.size();
    }
    return parts;
}

}  // namespace perigee
