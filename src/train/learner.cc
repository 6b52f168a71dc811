#include "train/learner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "train/guard.h"
#include "train/memory.h"
#include "train/snapshot.h"

namespace perigee {

namespace {

/// Sparse masks leave some global batches without loss. More than so many in a row are a mistake.
constexpr int kMostWithoutLoss = 100;

}  // namespace

Learner::Learner(Session& session)
    : session_(session),
      options_(session.options()),
      mesh_(session.mesh()),
      grads_(session.layout(), session.sharding(), mesh_, session.ops()),
      sums_(session.ops().device(), sizeof(Sums)),
      counts_(options_.precision.report_every == 0
                  ? Buffer()
                  : Buffer(session.ops().device(),
                           static_cast<size_t>(options_.model.num_hidden_layers * kLayerCounts) * sizeof(double))),
      participation_(session.ops(), options_, mesh_.shape()),
      optimizer_(options_.optimizer, session.layout(), session.sharding().ownership, session.weights().updated(),
                 session.ops(), static_cast<uint64_t>(options_.seed)),
      untrained_(untrained(params_of(options_), options_.model)) {}

StepReport Learner::step(std::vector<Batch> const& batches, RunState& state) {
    StepReport r{.step = state.step + 1, .ranks = mesh_.world().size()};
    auto const selections = session_.selections(state.step);
    double weight = 0;
    ForwardFlops flops;
    for (Batch const& b : batches) {
        weight = std::accumulate(b.weights_T.begin(), b.weights_T.end(), weight);
        r.tokens += b.tokens();
        flops += forward_flops(options_.model, selections, b.cu_seqlens, untrained_);
        leave_out_classifier(flops, options_.model, std::ranges::count(b.weights_T, 0.0f), untrained_);
    }
    enter(Phase::communication);
    // Ranks of a cp x tp group hold the same batches; each cp rank computes its tokens of them.
    r.loss_weight = mesh_.dp().host().sum(weight);
    r.tokens = mesh_.dp().host().sum(r.tokens);
    r.flops = mesh_.dp().host().sum(flops.training());
    double const causal_pairs = mesh_.dp().host().sum(flops.causal_pairs),
                 sparse_pairs = mesh_.dp().host().sum(flops.sparse_pairs);
    if (causal_pairs > 0) r.attended_share = sparse_pairs / causal_pairs;
    // Steps without loss are computed as all others, so that they take as long and ranks are compared.
    Work const work{r.step, batches, selections, r.loss_weight > 0 ? r.loss_weight : 1};
    Sums const sums = loss_and_gradient(work);
    add_up(sums, r);
    r.lr = learning_rate(options_.schedule, options_.optimizer.lr, state.step, options_.train.steps);
    if (r.loss_weight > 0)
        judge_and_update(work, sums, r, state);
    else
        leave_out(r, state);
    r.precision = precision_report(counts(r.step));
    r.participation = participation_.report(mesh_.world(), r.tokens);
    if (options_.guard.hash_every > 0 && r.step % options_.guard.hash_every == 0) check_replicas(work);
    ++state.step;
    // Samples before may have been of another length.
    int64_t const before = state.consumed_tokens.value_or(state.consumed_samples * options_.data.sequence_length);
    state.consumed_samples += options_.train.global_batch_size;
    state.consumed_tokens = before + options_.train.global_batch_size * options_.data.sequence_length;
    r.consumed_samples = state.consumed_samples;
    r.tokens_so_far = *state.consumed_tokens;
    session_.arena().settle();
    return r;
}

void Learner::judge_and_update(Work const& work, Sums const& sums, StepReport& r, RunState& state) {
    state.without_loss_in_a_row = 0;
    if (options_.guard.compute_again && is_suspicious(options_.guard, r.loss, r.grad_norm, state))
        add_up(compute_again(work, sums), r);
    Judgement const judged = judge_step(options_.train, options_.guard, r.loss, r.grad_norm, state);
    if (!judged.warning.empty() && mesh_.world().rank() == 0) log::warn("{}", judged.warning);
    r.judged = judged;
    r.skipped = judged.verdict != Verdict::apply;
    if (judged.verdict != Verdict::apply) return;
    enter(Phase::optimizer);
    AdamWOptimizer::Update const update{.norm = r.grad_norm, .lr = r.lr, .applied = state.applied_updates++};
    auto const grads = grads_.updated();
    // In the order in which the next forward needs them: a unit is collected while the next one is updated.
    for (int unit = 0; unit < session_.layout().units(); ++unit) {
        optimizer_.update(unit, grads, update);
        session_.weights().changed(unit);
    }
}

void Learner::leave_out(StepReport& r, RunState& state) {
    std::string const samples = fmt::format("samples {} to {}", state.consumed_samples,
                                            state.consumed_samples + options_.train.global_batch_size - 1);
    if (++state.without_loss_in_a_row > kMostWithoutLoss)
        fail(Category::data,
             "step {}: no token of the global batch ({}) carries loss, nor of the {} before: is the mask of the data "
             "right?",
             r.step, samples, kMostWithoutLoss);
    if (!std::exchange(told_without_loss_, true) && mesh_.world().rank() == 0)
        log::warn(
            "step {}: no token of the global batch ({}) carries loss, so it changes nothing. Such steps count as "
            "skipped in metrics.jsonl; the log names the first one only",
            r.step, samples);
    r.loss = r.grad_norm = std::numeric_limits<double>::quiet_NaN();
    r.skipped = true;
    r.judged.verdict = Verdict::skip;
}

void Learner::enter(Phase phase) {
    Device& device = session_.ops().device();
    device.phases().enter(device.queue(), phase);
}

void Learner::add_up(Sums const& sums, StepReport& r) {
    enter(Phase::communication);
    r.loss = mesh_.dp_cp().host().sum(sums.loss) / r.loss_weight;
    // The groups of the tp ranks may add up in another order, and all ranks must judge alike.
    mesh_.tp().host().broadcast(TensorView(&r.loss, {1}), 0);
    r.grad_norm = std::sqrt(mesh_.world().sum(sums.squares));
}

Learner::Sums Learner::loss_and_gradient(Work const& work) {
    auto const& batches = work.batches;
    Ops& ops = session_.ops();
    TensorView const on_device(static_cast<std::byte*>(sums_.data()), DType::f64, {2});
    ops.fill_zero(on_device);
    TensorView const counts = this->counts(work.step);
    if (!counts.empty()) ops.fill_zero(counts);
    GradientSink const sink{.grads = grads_,
                            .scale = 1.0 / work.loss_weight,
                            .seed = static_cast<uint64_t>(options_.seed),
                            .step = work.step,
                            .counts = counts,
                            .stream_rstd_LP = participation_.begin(work.step)};
    for (Batch const& b : batches) {
        grads_.begin_pass(&b == &batches.front(), &b == &batches.back());
        enter(Phase::forward);
        try {
            session_.model().accumulate(session_.model_weights(), sink, on_device.rows(0, 1), b, work.selections,
                                        session_.arena());
        } catch (std::exception const& e) {
            Error const error = as_error(e);
            if (error.category() != Category::memory) throw;
            MemoryUse const use{.weights = session_.model_weights().bytes(),
                                .gradients = grads_.bytes(),
                                .optimizer = optimizer_.bytes(),
                                .activations = session_.arena().capacity_bytes()};
            throw OutOfMemory(out_of_memory_report(error.what(), use, options_));
        }
        participation_.add();
    }
    ops.device().queue().wait(std::exchange(read_until_, {}));
    optimizer_.begin_update();
    grads_.await();
    enter(Phase::optimizer);
    optimizer_.add_squares(on_device.rows(1, 2), grads_.updated());
    Sums sums;
    ops.download(&sums, on_device);
    return sums;
}

TensorView Learner::counts(int64_t step) const {
    int64_t const every = options_.precision.report_every;
    if (every == 0 || step % every != 0) return {};
    return {static_cast<std::byte*>(counts_.data()), DType::f64, {options_.model.num_hidden_layers * kLayerCounts}};
}

std::vector<PrecisionReport> Learner::precision_report(TensorView counts) const {
    if (counts.empty()) return {};
    std::vector<PrecisionReport> reports;
    std::vector<double> numbers(static_cast<size_t>(counts.size()));
    session_.ops().download(numbers.data(), counts);
    for (std::span<double const> rest = numbers; !rest.empty(); rest = rest.subspan(kLayerCounts)) {
        PrecisionReport& layer = reports.emplace_back();
        for (size_t i = 0; i < kOperands; ++i) layer.operands[i] = report_of(rest, static_cast<Operand>(i));
    }
    return reports;
}

void Learner::initialise(uint64_t seed) {
    session_.load_frozen();
    session_.initialise(session_.layout(), optimizer_.weights(), seed);
    publish(0);
}

void Learner::read(Checkpoint const& checkpoint) {
    session_.load_frozen();
    session_.check_base(checkpoint);
    session_.read(checkpoint, tensors({session_.layout().whole()}));
    publish(checkpoint.state().applied_updates);
}

void Learner::publish(int64_t applied_updates) {
    optimizer_.publish(applied_updates);
    for (int unit = 0; unit < session_.layout().units(); ++unit) session_.weights().changed(unit);
}

Learner::Signs Learner::agree(Signs mine) const {
    int64_t flags[2] = {mine.stop, mine.writing};  // one message for both
    mesh_.world().all_reduce(TensorView(flags, Shape{2}), Reduce::max);
    return {.stop = flags[0] != 0, .writing = flags[1] != 0};
}

std::vector<StoredTensor> Learner::tensors(std::vector<FlatRange> const& ranges) const {
    ParamLayout const& layout = session_.layout();
    auto stored = stored_tensors(layout, optimizer_.weights(), "", ranges);
    std::ranges::move(stored_tensors(layout, optimizer_.first_moment(), kFirstMoment, ranges),
                      std::back_inserter(stored));
    std::ranges::move(stored_tensors(layout, optimizer_.second_moment(), kSecondMoment, ranges),
                      std::back_inserter(stored));
    return stored;
}

}  // namespace perigee
