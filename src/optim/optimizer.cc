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

int64_t total(std::vector<FlatRange> const& ranges) {
    int64_t elements = 0;
    for (FlatRange const& range : ranges) elements += range.size();
    return elements;
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
             "average; the optimizer keeps fp32 weights either way");
}

AdamWOptimizer::Packed::Packed(Ops& ops, int64_t elements)
    : memory(ops.device(), static_cast<size_t>(elements * size_of(ops.main_dtype()))),
      view(static_cast<std::byte*>(memory.data()), ops.main_dtype(), {elements}) {
    ops.fill_zero(view);
}

AdamWOptimizer::AdamWOptimizer(OptimizerOptions const& options, ParamLayout const& layout, Ownership ownership,
                               TensorView weights, Ops& ops, uint64_t seed)
    : options_(options),
      layout_(&layout),
      ownership_(std::move(ownership)),
      ops_(&ops),
      weights_(weights),
      seed_(seed),
      m_(ops, total(ownership_.updated)),
      v_(ops, total(ownership_.updated)) {
    PERIGEE_CHECK(weights.shape == Shape{layout.size()}, "weights {} for a layout of {}", weights.shape.str(),
                  layout.size());
    if (ops.compute_dtype() != ops.main_dtype()) main_weights_.emplace(ops, total(ownership_.updated));
}

void AdamWOptimizer::add_squares(TensorView sum, TensorView grads) {
    PERIGEE_CHECK(grads.shape == Shape{layout_->size()}, "gradients {}", grads.shape.str());
    for (FlatRange const& range : ownership_.owned) ops_->squared_norm(sum, grads.rows(range.begin, range.end));
}

void AdamWOptimizer::update(TensorView grads, double norm, double lr, int64_t applied_updates) {
    PERIGEE_CHECK(std::isfinite(norm), "an update with gradient norm {}", norm);
    PERIGEE_CHECK(grads.shape == Shape{layout_->size()}, "gradients {} for a layout of {}", grads.shape.str(),
                  layout_->size());
    bool const clip = options_.max_grad_norm > 0 && norm > options_.max_grad_norm;
    bool const stochastic = rounds() && options_.stochastic_rounding;
    int64_t before = 0;  // elements of earlier ranges
    for (FlatRange const& range : ownership_.updated) {
        for_runs(*layout_, range, [&](int64_t begin, int64_t end, bool decay) {
            int64_t const first = before + begin - range.begin, last = before + end - range.begin;
            TensorView const model = weights_.rows(begin, end);
            ops_->adamw({.w = rounds() ? main_weights_->view.rows(first, last) : model,
                         .m = m_.view.rows(first, last),
                         .v = v_.view.rows(first, last),
                         .g = grads.rows(begin, end),
                         .lr = lr,
                         .beta1 = options_.beta1,
                         .beta2 = options_.beta2,
                         .eps = options_.eps,
                         .weight_decay = decay ? options_.weight_decay : 0.0,
                         .grad_scale = clip ? options_.max_grad_norm / norm : 1.0,
                         .step = applied_updates + 1,
                         .rounded = rounds() && !stochastic ? model : TensorView()});
        });
        before += range.size();
    }
    if (stochastic) round_stochastically(applied_updates + 1);
}

void AdamWOptimizer::round_stochastically(int64_t applied_updates) {
    for (FlatPart const& part : weights())
        for (ParamLayout::Entry const& entry : layout_->entries()) {
            int64_t const begin = std::max(part.range.begin, entry.offset);
            int64_t const end = std::min(part.range.end, entry.offset + entry.local.size());
            if (begin >= end) continue;
            uint64_t const stream = hash_name(fmt::format("{} update {}", entry.spec.name, applied_updates));
            ops_->round_stochastically({.to = weights_.rows(begin, end),
                                        .from = part.values.rows(begin - part.range.begin, end - part.range.begin),
                                        .random = {seed_, Purpose::rounding, stream},
                                        .part = entry.part(begin - entry.offset)});
        }
}

void AdamWOptimizer::publish(int64_t applied_updates) {
    if (!rounds()) return;
    if (options_.stochastic_rounding && applied_updates > 0) return round_stochastically(applied_updates);
    for (FlatPart const& part : weights()) ops_->copy(weights_.rows(part.range.begin, part.range.end), part.values);
}

int64_t AdamWOptimizer::bytes() const {
    return m_.view.bytes() + v_.view.bytes() + (rounds() ? main_weights_->view.bytes() : 0);
}

std::vector<FlatPart> AdamWOptimizer::weights() const {
    if (rounds()) return parts(main_weights_->view);
    std::vector<FlatPart> parts;
    for (FlatRange const& range : ownership_.updated) parts.push_back({range, weights_.rows(range.begin, range.end)});
    return parts;
}

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
