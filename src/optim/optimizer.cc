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
             "gradients are scaled down to this global norm; 0 switches clipping off");
}

AdamWOptimizer::AdamWOptimizer(OptimizerOptions const& options, ParamLayout const& layout, Ownership ownership,
                               Ops& ops)
    : options_(options), layout_(&layout), ownership_(std::move(ownership)), ops_(&ops) {
    DType const dtype = ops.compute_dtype() == DType::f64 ? DType::f64 : DType::f32;
    Shape const shape{total(ownership_.updated)};
    auto const bytes = static_cast<size_t>(shape.size() * size_of(dtype));
    m_memory_ = Buffer(ops.device(), bytes);
    v_memory_ = Buffer(ops.device(), bytes);
    m_ = {static_cast<std::byte*>(m_memory_.data()), dtype, shape};
    v_ = {static_cast<std::byte*>(v_memory_.data()), dtype, shape};
    ops.fill_zero(m_);
    ops.fill_zero(v_);
}

double AdamWOptimizer::global_norm(TensorView grads, Mesh const& mesh) {
    PERIGEE_CHECK(grads.shape == Shape{layout_->size()}, "gradients {}", grads.shape.str());
    double squares = 0;
    for (FlatRange const& range : ownership_.owned) squares += ops_->squared_norm(grads.rows(range.begin, range.end));
    return std::sqrt(mesh.world().sum(squares));
}

void AdamWOptimizer::update(TensorView weights, TensorView grads, double norm, double lr, int64_t applied_updates) {
    PERIGEE_CHECK(std::isfinite(norm), "an update with gradient norm {}", norm);
    PERIGEE_CHECK(weights.shape == grads.shape && grads.shape == Shape{layout_->size()},
                  "weights {} and gradients {} for a layout of {}", weights.shape.str(), grads.shape.str(),
                  layout_->size());
    bool const clip = options_.max_grad_norm > 0 && norm > options_.max_grad_norm;
    int64_t before = 0;  // elements of earlier ranges
    for (FlatRange const& range : ownership_.updated) {
        for_runs(*layout_, range, [&](int64_t begin, int64_t end, bool decay) {
            int64_t const first = before + begin - range.begin, last = before + end - range.begin;
            ops_->adamw({.w = weights.rows(begin, end),
                         .m = m_.rows(first, last),
                         .v = v_.rows(first, last),
                         .g = grads.rows(begin, end),
                         .lr = lr,
                         .beta1 = options_.beta1,
                         .beta2 = options_.beta2,
                         .eps = options_.eps,
                         .weight_decay = decay ? options_.weight_decay : 0.0,
                         .grad_scale = clip ? options_.max_grad_norm / norm : 1.0,
                         .step = applied_updates + 1});
        });
        before += range.size();
    }
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
