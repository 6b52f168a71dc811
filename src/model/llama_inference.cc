// Passes of Llama without a backward: losses, scores, choices of blocks, logits.
#include <algorithm>

#include "model/llama_impl.h"

namespace perigee {

namespace {

/// The batch with a document of padding at its end, so that its tokens divide by `multiple`.
Batch padded(Batch batch, int64_t multiple) {
    auto const padding = static_cast<int32_t>((multiple - batch.tokens() % multiple) % multiple);
    if (padding == 0) return batch;
    auto const size = static_cast<size_t>(batch.tokens() + padding);
    for (int32_t t = 0; t < padding; ++t) batch.positions_T.push_back(t);
    batch.ids_T.resize(size);
    batch.targets_T.resize(size);
    batch.weights_T.resize(size);
    batch.cu_seqlens.push_back(batch.cu_seqlens.back() + padding);
    return batch;
}

/// Where a token of the pack is.
struct Place {
    int cp_rank = 0;
    int64_t row = 0;
};
Place find_token(ContextShard const& shard, int64_t token) {
    Place place;
    for (; place.cp_rank < shard.ranks(); ++place.cp_rank) {
        place.row = 0;
        for (auto const [begin, end] : shard.ranges(place.cp_rank)) {
            if (begin <= token && token < end) return {place.cp_rank, place.row + token - begin};
            place.row += end - begin;
        }
    }
    fail(Category::internal, "token {} of {}", token, shard.pack_tokens());
}

/// Of each place `width` values, moved to the places that `numbers` name, among `count`; zero elsewhere; added up.
template <class T>
std::vector<T> gather_values(std::vector<T> const& mine, std::vector<size_t> const& numbers, size_t count,
                             HostComm& cp) {
    int64_t const width = cp.max(numbers.empty() ? 0 : std::ssize(mine) / std::ssize(numbers));
    if (width == 0) return {};
    auto const size = static_cast<size_t>(width);
    std::vector<T> all(count * size);
    for (size_t i = 0; i < mine.size(); ++i) all[numbers[i / size] * size + i % size] = mine[i];
    cp.all_reduce(TensorView(all.data(), {std::ssize(all)}));
    return all;
}

/// From the scores of each rank's tokens to those of the pack, in the order of its places with loss.
TokenScores gather_scores(TokenScores const& mine, Batch const& pack, ContextShard const& shard, HostComm& cp) {
    if (cp.size() == 1) return mine;
    std::vector<size_t> number(pack.weights_T.size());  // of a place, among those with loss
    size_t count = 0;
    for (size_t t = 0; t < number.size(); ++t) number[t] = pack.weights_T[t] != 0 ? count++ : 0;
    std::vector<size_t> numbers;  // of this rank's
    for (auto const [begin, end] : shard.ranges())
        for (auto t = static_cast<size_t>(begin); t < static_cast<size_t>(end); ++t)
            if (pack.weights_T[t] != 0) numbers.push_back(number[t]);
    return {.nll = gather_values(mine.nll, numbers, count, cp),
            .best = gather_values(mine.best, numbers, count, cp),
            .top_ids = gather_values(mine.top_ids, numbers, count, cp),
            .top_logprobs = gather_values(mine.top_logprobs, numbers, count, cp)};
}

}  // namespace

/// A batch's forward that no backward follows.
struct Llama::Impl::Evaluation {
    Evaluation(Impl const& impl, WeightUnits& weights, Batch const& batch, std::span<Selection const> selections,
               Arena& arena, MemoryPolicy const* kept = nullptr)
        : local(impl.share(batch, selections)),
          inputs(impl.upload(local, arena)),
          state(impl.forward(weights, inputs, selections, arena, kept)) {}
    Evaluation(Evaluation const&) = delete;
    Evaluation& operator=(Evaluation const&) = delete;

    LocalBatch local;
    Inputs inputs;  ///< refers to `local`
    Forward state;
};

/// The weights of the classifier, with the stream of `state` normalised for it.
struct Llama::Impl::ReadyClassifier {
    ReadyClassifier(Impl const& impl, WeightUnits& weights, Forward const& state)
        : of_head(weights, impl.head(), -1), of_classifier(weights, impl.classifier_unit(), -1) {
        impl.normalise(of_head, state);
    }

    Needed of_head, of_classifier;
};

std::vector<float> Llama::Impl::host_floats(ConstView values) const {
    std::vector<std::byte> raw(static_cast<size_t>(values.bytes()));
    ops.download(raw.data(), values);
    ConstView const host{raw.data(), values.dtype, values.shape};
    std::vector<float> floats(static_cast<size_t>(values.size()));
    auto const convert = [&]<class T>(T const* from, auto as_float) {
        for (size_t i = 0; i < floats.size(); ++i) floats[i] = as_float(from[i]);
    };
    if (host.dtype == DType::f32)
        convert(host.as<float>(), [](float x) { return x; });
    else if (host.dtype == DType::f64)
        convert(host.as<double>(), [](double x) { return static_cast<float>(x); });
    else
        convert(host.as<bf16>(), [](bf16 x) { return to_float(x); });
    return floats;
}

/// Adds a sparse layer to `to`: of every token and block of its document, the heads that chose it. Heads and tokens of
/// all ranks are added up.
void Llama::Impl::add_choices(Pass const& pass, AttentionActivations const& acts, Selection const& selection,
                              BlockChoices& to) const {
    TensorView const chosen_THS = acts.chosen_THS;
    std::vector<int32_t> chosen(static_cast<size_t>(chosen_THS.size()));
    if (!chosen.empty()) ops.download(chosen.data(), chosen_THS);
    Shape const shape{to.tokens(), to.blocks()};
    std::vector<int32_t> heads_TN(static_cast<size_t>(shape.size()));
    int64_t const of_group = options.num_attention_heads / options.kv_heads(), groups = chosen_THS[1] / of_group;
    auto const per_group = static_cast<size_t>(of_group * chosen_THS[2]);
    GroupBlocks blocks;
    std::span<int32_t> next = chosen;
    for (TokenRange const range : pass.attention.queries(selection)) {
        for (int64_t token = range.begin; token < range.end; ++token) {
            int32_t* const heads_N = heads_TN.data() + token * to.blocks();
            for (int64_t group = 0; group < groups; ++group) {
                auto const its = next.first(per_group);
                next = next.subspan(per_group);
                std::ranges::sort(its);
                for (size_t i = 0; i < its.size(); ++i) {
                    if (its[i] < 0) continue;
                    ++heads_N[its[i]], ++blocks.of_heads;
                    if (i == 0 || its[i] != its[i - 1]) ++blocks.of_groups;
                }
            }
        }
    }
    for (HostComm* const ranks : {&mesh.tp().host(), &mesh.cp().host()}) {
        ranks->all_reduce(TensorView(heads_TN.data(), shape));
        blocks = {ranks->sum(blocks.of_heads), ranks->sum(blocks.of_groups)};
    }
    to.add_sparse_layer(std::move(heads_TN), blocks);
}

LossSums Llama::loss(WeightUnits& weights, Batch const& batch, std::span<Selection const> selections, Arena& arena) {
    Arena::Scope const scope(arena);
    LossSum const sum(impl_->ops, arena);
    double correct = 0;
    Impl::Evaluation const run(*impl_, weights, batch, selections, arena);
    Impl::ReadyClassifier const ready(*impl_, weights, run.state);
    classifier_loss(impl_->ops, impl_->mesh.tp(), arena,
                    impl_->classifier_inputs(ready.of_classifier, run.inputs, run.state),
                    {.loss_accumulated = sum.view, .correct_accumulated = &correct});
    return {.nll = sum.read(), .correct = correct};
}

TokenScores Llama::scores(WeightUnits& weights, Batch const& batch, std::span<Selection const> selections,
                          int64_t allowed, Arena& arena, int64_t top) {
    Arena::Scope const scope(arena);
    Mesh const& mesh = impl_->mesh;
    Batch const pack = padded(batch, mesh.shape().tp * mesh.shape().cp);
    Impl::Evaluation const run(*impl_, weights, pack, selections, arena);
    Batch const& mine = run.local.batch();
    std::vector<int64_t> rows;  // of this rank's tokens
    std::vector<int32_t> targets;
    for (int64_t row = 0; row < mine.tokens(); ++row) {
        auto const t = static_cast<size_t>(row);
        if (mine.weights_T[t] == 0) continue;
        rows.push_back(row);
        targets.push_back(mine.targets_T[t]);
    }
    Impl::ReadyClassifier const ready(*impl_, weights, run.state);
    TokenScores const scores = classifier_scores(impl_->ops, mesh.tp(), arena,
                                                 {.x_TD = run.state.pass.stream.gather(run.state.normed_PD),
                                                  .w_VD = impl_->classifier(ready.of_classifier.memory()),
                                                  .rows = rows,
                                                  .targets = targets,
                                                  .allowed = allowed,
                                                  .top = top});
    return gather_scores(scores, pack, run.local.shard(), mesh.cp().host());
}

BlockChoices Llama::choices(WeightUnits& weights, Batch const& batch, std::span<Selection const> selections,
                            Arena& arena) {
    Arena::Scope const scope(arena);
    MemoryPolicy const kept{.recompute = std::vector(selections.size(), Recompute::attention)};
    Impl::Evaluation const run(*impl_, weights, batch, selections, arena, &kept);
    auto const sparse = std::ranges::find_if_not(selections, is_full);
    int64_t const block_size = sparse != selections.end() ? budget_of(*sparse)->block_size : batch.tokens();
    BlockChoices result(batch.cu_seqlens, block_size, impl_->options.num_attention_heads);
    for (size_t layer = 0; layer < selections.size(); ++layer) {
        if (is_full(selections[layer]))
            result.add_full_layer();
        else
            impl_->add_choices(run.state.pass, run.state.blocks[layer].attention, selections[layer], result);
    }
    return result;
}

void Llama::attention_inputs(WeightUnits& weights, Batch const& batch, std::span<Selection const> selections,
                             Arena& arena, std::function<void(int64_t, AttentionInputs const&)> const& visit) {
    PERIGEE_CHECK(impl_->mesh.shape().cp == 1, "queries and keys of a mesh with cp {}", impl_->mesh.shape().cp);
    Arena::Scope const scope(arena);
    MemoryPolicy const kept{.recompute = std::vector(selections.size(), Recompute::mlp)};
    Impl::Evaluation const run(*impl_, weights, batch, selections, arena, &kept);
    AttentionProblem const problem = impl_->attention_problem(run.inputs);
    for (size_t layer = 0; layer < selections.size(); ++layer) {
        auto const& [q_THK, k_TGK, v_TGK, o_THK] = run.state.blocks[layer].attention.attended;
        visit(static_cast<int64_t>(layer), {.q_THK = impl_->host_floats(q_THK),
                                            .k_TGK = impl_->host_floats(k_TGK),
                                            .q_shape = q_THK.shape,
                                            .k_shape = k_TGK.shape,
                                            .first_head = problem.first_head,
                                            .scale = problem.scale});
    }
}

/// The same on every rank.
std::vector<float> Llama::Impl::logits_of_token(WeightUnits& weights, Forward const& state, ContextShard const& shard,
                                                int64_t token, Arena& arena) const {
    int64_t const vocab = options.vocab_size, tp = mesh.shape().tp;
    ReadyClassifier const ready(*this, weights, state);
    TensorView const logits = arena.allocate("logits", state.pass.compute(), {1, vocab}, Use::logits);
    Place const place = find_token(shard, token);
    if (place.cp_rank == mesh.cp_rank()) {
        TensorView const part =
            tp > 1 ? arena.allocate("part of logits", state.pass.compute(), {1, vocab / tp}) : logits;
        ops.matmul({.c = part,
                    .a = state.pass.stream.gather(state.normed_PD).rows(place.row, place.row + 1),
                    .b = classifier(ready.of_classifier.memory()),
                    .transpose_b = true});
        if (tp > 1) mesh.tp().all_gather(ops.device().queue(), logits, part);
    }
    mesh.cp().broadcast(ops.device().queue(), logits, place.cp_rank);
    return host_floats(logits);
}

std::vector<float> Llama::next_logits(WeightUnits& weights, Batch const& batch, std::span<Selection const> selections,
                                      Arena& arena) {
    Arena::Scope const scope(arena);
    MeshShape const& mesh = impl_->mesh.shape();
    Batch const pack = padded(batch, mesh.tp * mesh.cp);
    Impl::Evaluation const run(*impl_, weights, pack, selections, arena);
    return impl_->logits_of_token(weights, run.state, run.local.shard(), batch.tokens() - 1, arena);
}

std::vector<float> Llama::logits(WeightUnits& weights, Batch const& batch, std::span<Selection const> selections,
                                 Arena& arena) {
    Arena::Scope const scope(arena);
    PERIGEE_CHECK(impl_->mesh.shape().tp * impl_->mesh.shape().cp == 1, "a mesh with cp {} and tp {}",
                  impl_->mesh.shape().cp, impl_->mesh.shape().tp);
    Impl::Evaluation const run(*impl_, weights, batch, selections, arena);
    Impl::ReadyClassifier const ready(*impl_, weights, run.state);
    TensorView const logits =
        arena.allocate("logits", run.state.pass.compute(), {batch.tokens(), impl_->options.vocab_size});
    impl_->ops.matmul({.c = logits,
                       .a = run.state.normed_PD,
                       .b = impl_->classifier(ready.of_classifier.memory()),
                       .transpose_b = true});
    return impl_->host_floats(logits);
}

}  // namespace perigee
