#include "optim/optimizer.h"

#include <cmath>

namespace perigee {

namespace {

/// Calls body(begin, end, key) for every maximal range of the flat buffer whose parameters have equal `key_of(entry)`.
void for_runs(ParamLayout const& layout, auto&& key_of, auto&& body) {
    auto const& entries = layout.entries();
    for (size_t first = 0, next = 0; first < entries.size(); first = next) {
        auto const key = key_of(entries[first]);
        while (next < entries.size() && key_of(entries[next]) == key) ++next;
        body(entries[first].offset, next < entries.size() ? entries[next].offset : layout.size(), key);
    }
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

AdamWOptimizer::AdamWOptimizer(OptimizerOptions const& options, ParamLayout const& layout, Ops& ops)
    : options_(options), layout_(&layout), ops_(&ops) {
    DType const dtype = ops.compute_dtype() == DType::f64 ? DType::f64 : DType::f32;
    auto const bytes = static_cast<size_t>(layout.size() * size_of(dtype));
    m_memory_ = Buffer(ops.device(), bytes);
    v_memory_ = Buffer(ops.device(), bytes);
    m_ = {static_cast<std::byte*>(m_memory_.data()), dtype, Shape{layout.size()}};
    v_ = {static_cast<std::byte*>(v_memory_.data()), dtype, Shape{layout.size()}};
    ops.fill_zero(m_);
    ops.fill_zero(v_);
}

double AdamWOptimizer::global_norm(TensorView grads, Mesh const& mesh) {
    PERIGEE_CHECK(grads.shape == Shape{layout_->size()}, "gradients {}", grads.shape.str());
    // Every tp rank holds the parameters that are not cut; only the first one counts them.
    auto counts_here = [&](ParamLayout::Entry const& e) { return e.spec.cut != Cut::whole || mesh.tp_rank() == 0; };
    double squares = 0;
    for_runs(*layout_, counts_here, [&](int64_t begin, int64_t end, bool counts) {
        if (counts) squares += ops_->squared_norm(grads.rows(begin, end));
    });
    return std::sqrt(mesh.tp().sum(squares));
}

void AdamWOptimizer::update(TensorView weights, TensorView grads, double norm, double lr, int64_t applied_updates) {
    PERIGEE_CHECK(std::isfinite(norm), "an update with gradient norm {}", norm);
    PERIGEE_CHECK(weights.shape == m_.shape && grads.shape == m_.shape, "weights {}, gradients {}, moments {}",
                  weights.shape.str(), grads.shape.str(), m_.shape.str());
    bool const clip = options_.max_grad_norm > 0 && norm > options_.max_grad_norm;
    auto decays = [](ParamLayout::Entry const& entry) { return entry.spec.decay; };
    for_runs(*layout_, decays, [&](int64_t begin, int64_t end, bool decay) {
        ops_->adamw({.w = weights.rows(begin, end),
                     .m = m_.rows(begin, end),
                     .v = v_.rows(begin, end),
                     .g = grads.rows(begin, end),
                     .lr = lr,
                     .beta1 = options_.beta1,
                     .beta2 = options_.beta2,
                     .eps = options_.eps,
                     .weight_decay = decay ? options_.weight_decay : 0.0,
                     .grad_scale = clip ? options_.max_grad_norm / norm : 1.0,
                     .step = applied_updates + 1});
    });
}

}  // namespace perigee
