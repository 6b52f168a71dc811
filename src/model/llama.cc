#include "model/llama.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "model/block.h"
#include "model/classifier.h"
#include "model/rope.h"
#include "parallel/context.h"

namespace perigee {

namespace {

char const* const kEmbedding = "model.embed_tokens.weight";
char const* const kFinalNorm = "model.norm.weight";

void check_batch(Batch const& batch, std::span<Selection const> selections, ModelOptions const& options) {
    auto const tokens = batch.ids_T.size();
    PERIGEE_CHECK(tokens > 0 && batch.targets_T.size() == tokens && batch.weights_T.size() == tokens &&
                      batch.positions_T.size() == tokens,
                  "a batch of {} ids, {} targets, {} weights and {} positions", tokens, batch.targets_T.size(),
                  batch.weights_T.size(), batch.positions_T.size());
    PERIGEE_CHECK(
        batch.cu_seqlens.size() >= 2 && batch.cu_seqlens.front() == 0 && batch.cu_seqlens.back() == batch.tokens(),
        "document borders do not run from 0 to {}", tokens);
    PERIGEE_CHECK(std::ssize(selections) == options.num_hidden_layers, "{} kinds of attention for {} layers",
                  selections.size(), options.num_hidden_layers);
}

/// This cp rank's tokens of a batch: the batch itself where there is one rank.
class LocalBatch {
  public:
    LocalBatch(Batch const& pack, ContextShard const& shard) : shard_(shard), pack_(&pack) {
        if (shard.ranks() > 1) part_ = shard_batch(pack, shard);
    }
    ContextShard const& shard() const { return shard_; }
    Batch const& batch() const { return part_ ? *part_ : *pack_; }

  private:
    ContextShard shard_;
    Batch const* pack_;
    std::optional<Batch> part_;
};

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

/// From the scores of each rank's tokens to those of the pack, in the order of its places with loss.
TokenScores gather_scores(TokenScores const& mine, Batch const& pack, ContextShard const& shard, HostComm& cp) {
    if (cp.size() == 1) return mine;
    std::vector<size_t> number(pack.weights_T.size());  // of a place, among those with loss
    size_t count = 0;
    for (size_t t = 0; t < number.size(); ++t) number[t] = pack.weights_T[t] != 0 ? count++ : 0;
    TokenScores all{.nll = std::vector<double>(count)};
    bool const with_best = cp.any(!mine.best.empty());
    if (with_best) all.best.resize(count);
    size_t next = 0;
    for (auto const [begin, end] : shard.ranges()) {
        for (auto t = static_cast<size_t>(begin); t < static_cast<size_t>(end); ++t) {
            if (pack.weights_T[t] == 0) continue;
            all.nll[number[t]] = mine.nll[next];
            if (with_best) all.best[number[t]] = mine.best[next];
            ++next;
        }
    }
    cp.all_reduce(TensorView(all.nll.data(), {std::ssize(all.nll)}));
    if (with_best) cp.all_reduce(TensorView(all.best.data(), {std::ssize(all.best)}));
    return all;
}

/// A sum that starts at zero and stays on the device until it is read.
struct LossSum {
    LossSum(Ops& o, Arena& arena) : ops(o), view(arena.allocate("loss", DType::f64, {1})) { ops.fill_zero(view); }
    double read() const {
        double value = 0;
        ops.download(&value, view);
        return value;
    }
    Ops& ops;
    TensorView view;
};

std::vector<float> host_floats(Ops& ops, ConstView values) {
    std::vector<std::byte> raw(static_cast<size_t>(values.bytes()));
    ops.download(raw.data(), values);
    ConstView const host{raw.data(), values.dtype, values.shape};
    std::vector<float> floats(static_cast<size_t>(values.size()));
    for (size_t i = 0; i < floats.size(); ++i)
        floats[i] = host.dtype == DType::f32   ? host.as<float>()[i]
                    : host.dtype == DType::f64 ? static_cast<float>(host.as<double>()[i])
                                               : to_float(host.as<bf16>()[i]);
    return floats;
}

}  // namespace

namespace {

/// Keys and values of a layer go into the cache and are attended together with those before them.
void attend_past(AttentionActivations& acts, KvCache const& cache, int64_t layer) {
    int64_t const begin = cache.tokens(), end = begin + acts.local.q_THK[0];
    acts.local.k_TGK = cache.keys(layer, begin, end);
    acts.local.v_TGK = cache.values(layer, begin, end);
    acts.attended.k_TGK = cache.keys(layer, 0, end);
    acts.attended.v_TGK = cache.values(layer, 0, end);
}

}  // namespace

struct Llama::Impl {
    ModelOptions options;
    ParamLayout const& layout;
    Mesh const& mesh;
    Ops& ops;
    Recompute recompute;
    Rope rope;
    ContextMode context_mode;

    /// The tokens of one pass, on the device.
    struct Inputs {
        LocalBatch const& local;
        std::span<int32_t const> cu_seqlens;  ///< of all that is attended
        KvCache const* past = nullptr;        ///< of the tokens before these
        TensorView ids_T;
        TensorView positions_T;
        TensorView targets_T;
        TensorView weights_T;
    };

    /// The state of one pass after its forward.
    struct Forward {
        Pass pass;
        std::vector<BlockActivations> blocks = {};  ///< one per layer, or one for all of them
        TensorView x_PD = {};                       ///< the stream after the last block
        TensorView rstd_P = {};
        TensorView normed_PD = {};
    };

    TensorView classifier(TensorView flat) const {
        return layout.view(flat, options.tie_word_embeddings ? kEmbedding : "lm_head.weight");
    }

    ClassifierInputs classifier_inputs(TensorView weights, Inputs const& inputs, Forward const& state) const {
        return {.x_TD = state.pass.stream.gather(state.normed_PD),
                .w_VD = classifier(weights),
                .targets_T = inputs.targets_T,
                .weights_T = inputs.weights_T,
                .host_weights_T = inputs.local.batch().weights_T};
    }

    /// Zeros for the gradients that no product writes: those of vectors, and of an embedding that is no classifier.
    void clear_sums(TensorView grads) const {
        for (ParamLayout::Entry const& entry : layout.entries())
            if (entry.spec.shape.rank() == 1 || (entry.spec.name == kEmbedding && !options.tie_word_embeddings))
                ops.fill_zero(grads.rows(entry.offset, entry.offset + entry.local.size()));
    }

    int64_t vocab_begin() const { return mesh.tp_rank() * (options.vocab_size / mesh.shape().tp); }

    LocalBatch share(Batch const& batch, std::span<Selection const> selections) const;
    AttentionProblem attention_problem(Inputs const& inputs) const;
    Inputs upload(LocalBatch const& local, Arena& arena) const;
    std::vector<float> logits_of_token(TensorView weights, Forward const& state, ContextShard const& shard,
                                       int64_t token, Arena& arena) const;
    Pass begin(Inputs const& inputs, Arena& arena) const;
    Forward forward(TensorView weights, Inputs const& inputs, std::span<Selection const> selections, Arena& arena,
                    bool keep) const;
    void backward(TensorView weights, GradientSink const& sink, Inputs const& inputs, Forward const& state,
                  BlockGradients const& temporary, std::span<Selection const> selections) const;
    void train(TensorView weights, GradientSink const& sink, TensorView loss_accumulated, Inputs const& inputs,
               std::span<Selection const> selections, Arena& arena) const;
    std::vector<int32_t> count_choices(Pass const& pass, AttentionActivations const& acts,
                                       BlockChoices const& of) const;
};

LocalBatch Llama::Impl::share(Batch const& batch, std::span<Selection const> selections) const {
    check_batch(batch, selections, options);
    // MoBA's blocks are long stretches of neighbours, so only full attention is better balanced as zigzag.
    bool const zigzag = context_mode == ContextMode::allgather && batch.tokens() % (2 * mesh.shape().cp) == 0 &&
                        std::ranges::all_of(selections, is_full);
    LocalBatch local(batch, ContextShard(batch.tokens(), mesh.shape().cp, mesh.cp_rank(), zigzag));
    if (local.batch().tokens() % mesh.shape().tp != 0)
        fail(Category::config, "the {} tokens of a rank are not a multiple of parallel.tensor = {}",
             local.batch().tokens(), mesh.shape().tp);
    return local;
}

AttentionProblem Llama::Impl::attention_problem(Inputs const& inputs) const {
    int64_t const heads = options.num_attention_heads / mesh.shape().tp;
    return {.heads = heads,
            .first_head = mesh.tp_rank() * heads,
            .kv_heads = options.kv_heads() / mesh.shape().tp,
            .head_dim = options.head_size(),
            .scale = 1 / std::sqrt(static_cast<double>(options.head_size())),
            .cu_seqlens = inputs.cu_seqlens,
            .past = inputs.past != nullptr ? inputs.past->tokens() : 0};
}

Llama::Impl::Inputs Llama::Impl::upload(LocalBatch const& local, Arena& arena) const {
    Batch const& batch = local.batch();
    Shape const tokens{batch.tokens()};
    Inputs const inputs{.local = local,
                        .cu_seqlens = batch.cu_seqlens,
                        .ids_T = arena.allocate("ids", DType::i32, tokens),
                        .positions_T = arena.allocate("positions", DType::i32, tokens),
                        .targets_T = arena.allocate("targets", DType::i32, tokens),
                        .weights_T = arena.allocate("weights", DType::f32, tokens)};
    ops.upload(inputs.ids_T, batch.ids_T.data());
    ops.upload(inputs.positions_T, batch.positions_T.data());
    ops.upload(inputs.targets_T, batch.targets_T.data());
    ops.upload(inputs.weights_T, batch.weights_T.data());
    return inputs;
}

Pass Llama::Impl::begin(Inputs const& inputs, Arena& arena) const {
    LocalBatch const& local = inputs.local;
    Batch const& batch = local.batch();
    int64_t const T = batch.tokens(), R = options.head_size() / 2;
    int64_t const tp = mesh.shape().tp, D = options.hidden_size;
    TensorView const whole_TD =
        tp > 1 ? arena.allocate("whole", ops.compute_dtype(), {T, D}, Use::communication) : TensorView();
    Pass pass{.ops = ops,
              .options = options,
              .recompute = recompute,
              .mesh = mesh,
              .stream = {ops, mesh.tp(), whole_TD},
              .attention = {ops, mesh.cp(), context_mode, local.shard(), attention_problem(inputs), arena},
              .tokens = T};
    pass.cos_TR = arena.allocate("cos", pass.statistics(), {T, R});
    pass.sin_TR = arena.allocate("sin", pass.statistics(), {T, R});
    pass.branch_PD = arena.allocate("branch", pass.compute(), {pass.part(), D});
    pass.qkv_TX = arena.allocate("qkv", pass.compute(), {T, pass.qkv_width()});
    ops.rope_table({pass.cos_TR, pass.sin_TR, inputs.positions_T, rope.inverse_frequencies, rope.magnitude});
    return pass;
}

/// With `keep`, every layer's activations stay for the backward; otherwise all layers use the same memory.
Llama::Impl::Forward Llama::Impl::forward(TensorView weights, Inputs const& inputs,
                                          std::span<Selection const> selections, Arena& arena, bool keep) const {
    Forward state{.pass = begin(inputs, arena)};
    Pass const& pass = state.pass;
    state.x_PD = arena.allocate("final x", pass.compute(), {pass.part(), options.hidden_size});
    state.rstd_P = arena.allocate("final rstd", pass.statistics(), {pass.part()});
    state.normed_PD = arena.allocate("final normed", pass.compute(), {pass.part(), options.hidden_size});

    auto const sparse = std::ranges::find_if_not(selections, is_full);
    Selection const& most = sparse != selections.end() ? *sparse : selections.front();  // takes the most memory
    ConstView previous_PD;
    for (size_t layer = 0; layer < selections.size(); ++layer) {
        // The first block's activations are whole: the others share with it what is computed again. Only the backward
        // of the first comes after theirs.
        if (keep || layer == 0) {
            Selection const& largest = keep && recompute < Recompute::block ? selections[layer] : most;
            state.blocks.push_back(
                allocate_activations(arena, pass, largest, recompute, layer > 0 ? &state.blocks.front() : nullptr));
        }
        BlockActivations acts = state.blocks.back();
        if (inputs.past != nullptr) attend_past(acts.attention, *inputs.past, static_cast<int64_t>(layer));
        if (layer == 0) {
            ops.embedding_forward(
                {pass.stream.partial(acts.x_PD), inputs.ids_T, layout.view(weights, kEmbedding), vocab_begin()});
            pass.stream.add_up(acts.x_PD);
        }
        block_forward(pass, block_tensors(layout, weights, options, static_cast<int64_t>(layer)), acts, previous_PD,
                      selections[layer]);
        previous_PD = acts.mid_PD;
    }
    ops.rmsnorm_forward({.y_TD = state.normed_PD,
                         .rstd_T = state.rstd_P,
                         .x_TD = previous_PD,
                         .w_D = layout.view(weights, kFinalNorm),
                         .eps = options.rms_norm_eps,
                         .residual_TD = pass.branch_PD,
                         .sum_TD = state.x_PD});
    return state;
}

/// temporary.dnormed_PD holds the gradient of the final norm's output; temporary.dx_PD becomes that of the embedding's.
void Llama::Impl::backward(TensorView weights, GradientSink const& sink, Inputs const& inputs, Forward const& state,
                           BlockGradients const& temporary, std::span<Selection const> selections) const {
    TensorView const grads = sink.grads;
    // The flat buffer is in forward order, so what is complete is always its end.
    auto const done_from = [&](std::string const& first) {
        if (sink.on_done) sink.on_done(layout.entry(first).offset);
    };
    ops.rmsnorm_backward({.dx_TD = temporary.dx_PD,
                          .dw_accumulated_D = layout.view(grads, kFinalNorm),
                          .dy_TD = temporary.dnormed_PD,
                          .x_TD = state.x_PD,
                          .w_D = layout.view(weights, kFinalNorm),
                          .rstd_T = state.rstd_P});
    done_from(kFinalNorm);
    for (size_t layer = selections.size(); layer-- > 0;) {
        auto const index = static_cast<int64_t>(layer);
        block_backward(state.pass, block_tensors(layout, weights, options, index),
                       block_tensors(layout, grads, options, index), state.blocks[layer], temporary, selections[layer]);
        done_from(fmt::format("model.layers.{}.input_layernorm.weight", layer));
    }
    ops.embedding_backward(
        {layout.view(grads, kEmbedding), inputs.ids_T, state.pass.stream.gather(temporary.dx_PD), vocab_begin()});
    done_from(kEmbedding);
}

/// Of every token and block of its document, the heads that chose it: heads and tokens of all ranks added up.
std::vector<int32_t> Llama::Impl::count_choices(Pass const& pass, AttentionActivations const& acts,
                                                BlockChoices const& of) const {
    TensorView const chosen_THS = acts.chosen_THS;
    std::vector<int32_t> chosen(static_cast<size_t>(chosen_THS.size()));
    if (!chosen.empty()) ops.download(chosen.data(), chosen_THS);
    Shape const shape{of.tokens(), of.blocks()};
    std::vector<int32_t> heads_TN(static_cast<size_t>(shape.size()));
    auto const per_token = static_cast<size_t>(chosen_THS[1] * chosen_THS[2]);
    auto next = chosen.begin();
    for (TokenRange const range : pass.attention.queries()) {
        for (int64_t token = range.begin; token < range.end; ++token) {
            int32_t* const heads_N = heads_TN.data() + token * of.blocks();
            for (size_t i = 0; i < per_token; ++i, ++next)
                if (*next >= 0) ++heads_N[*next];
        }
    }
    mesh.tp().host().all_reduce(TensorView(heads_TN.data(), shape));
    mesh.cp().host().all_reduce(TensorView(heads_TN.data(), shape));
    return heads_TN;
}

Llama::Llama(ModelOptions const& options, ParamLayout const& layout, Mesh const& mesh, Ops& ops, Recompute recompute)
    : impl_(
          new Impl{.options = options,
                   .layout = layout,
                   .mesh = mesh,
                   .ops = ops,
                   .recompute = recompute,
                   .rope = make_rope(options),
                   .context_mode = resolve_context_mode(mesh.context_mode(), mesh.shape(), options.kv_heads()).mode}) {
    ops.forget_repeated();  // of an earlier model, whose place in memory this one may have
}

Llama::~Llama() = default;

LossSums Llama::loss(TensorView weights, Batch const& batch, std::span<Selection const> selections, Arena& arena) {
    Arena::Scope const scope(arena);
    LossSum const sum(impl_->ops, arena);
    double correct = 0;
    LocalBatch const local = impl_->share(batch, selections);
    Impl::Inputs const inputs = impl_->upload(local, arena);
    Impl::Forward const state = impl_->forward(weights, inputs, selections, arena, false);
    classifier_loss(impl_->ops, impl_->mesh.tp(), arena, impl_->classifier_inputs(weights, inputs, state),
                    {.loss_accumulated = sum.view, .correct_accumulated = &correct});
    return {.nll = sum.read(), .correct = correct};
}

TokenScores Llama::scores(TensorView weights, Batch const& batch, std::span<Selection const> selections,
                          int64_t allowed, Arena& arena) {
    Arena::Scope const scope(arena);
    Mesh const& mesh = impl_->mesh;
    Batch const pack = padded(batch, mesh.shape().tp * mesh.shape().cp);
    LocalBatch const local = impl_->share(pack, selections);
    std::vector<int64_t> rows;  // of this rank's tokens
    std::vector<int32_t> targets;
    for (int64_t row = 0; row < local.batch().tokens(); ++row) {
        auto const t = static_cast<size_t>(row);
        if (local.batch().weights_T[t] == 0) continue;
        rows.push_back(row);
        targets.push_back(local.batch().targets_T[t]);
    }
    Impl::Inputs const inputs = impl_->upload(local, arena);
    Impl::Forward const state = impl_->forward(weights, inputs, selections, arena, false);
    TokenScores const mine = classifier_scores(impl_->ops, mesh.tp(), arena,
                                               {.x_TD = state.pass.stream.gather(state.normed_PD),
                                                .w_VD = impl_->classifier(weights),
                                                .rows = rows,
                                                .targets = targets,
                                                .allowed = allowed});
    return gather_scores(mine, pack, local.shard(), mesh.cp().host());
}

void Llama::Impl::train(TensorView weights, GradientSink const& sink, TensorView loss_accumulated, Inputs const& inputs,
                        std::span<Selection const> selections, Arena& arena) const {
    Arena::Scope const scope(arena);
    Forward state = forward(weights, inputs, selections, arena, true);
    state.pass.fresh = sink.fresh;
    if (sink.fresh) clear_sums(sink.grads);
    BlockGradients const temporary = allocate_gradients(arena, state.pass);
    SequenceParallel const& stream = state.pass.stream;
    ops.device().phases().enter(ops.device().queue(), Phase::backward);  // the classifier makes gradients with its loss
    classifier_loss(ops, mesh.tp(), arena, classifier_inputs(weights, inputs, state),
                    {.loss_accumulated = loss_accumulated,
                     .dx_TD = stream.partial(temporary.dnormed_PD),
                     .dw_accumulated_VD = classifier(sink.grads),
                     .fresh = sink.fresh,
                     .scale = sink.scale});
    stream.add_up(temporary.dnormed_PD);
    backward(weights, sink, inputs, state, temporary, selections);
}

namespace {

/// Everything that the operations of a training pass depend on: the addresses of `memory`, how often the arena has
/// moved, and what differs between batches.
std::vector<int64_t> training_key(std::initializer_list<void const*> memory, Arena const& arena,
                                  GradientSink const& sink, Batch const& batch, std::span<Selection const> selections) {
    std::vector<int64_t> key = {arena.growths(), std::bit_cast<int64_t>(sink.scale), int64_t{sink.fresh}};
    for (void const* address : memory) key.push_back(std::bit_cast<int64_t>(address));
    for (Selection const& selection : selections) key.push_back(static_cast<int64_t>(selection.index()));
    key.insert(key.end(), batch.cu_seqlens.begin(), batch.cu_seqlens.end());
    // Chunks without loss are left out.
    for (size_t t = 0; t < batch.weights_T.size(); ++t)
        if (batch.weights_T[t] == 0) key.push_back(static_cast<int64_t>(t));
    return key;
}

}  // namespace

void Llama::accumulate(TensorView weights, GradientSink const& sink, TensorView loss_accumulated, Batch const& batch,
                       std::span<Selection const> selections, Arena& arena) {
    Arena::Scope const scope(arena);
    LocalBatch const local = impl_->share(batch, selections);
    Impl::Inputs const inputs = impl_->upload(local, arena);
    auto const pass = [&] { impl_->train(weights, sink, loss_accumulated, inputs, selections, arena); };
    MeshShape const& shape = impl_->mesh.shape();
    if (shape.tp * shape.cp > 1 || sink.on_done) return pass();  // other ranks take part
    auto const key =
        training_key({impl_.get(), &arena, weights.data, sink.grads.data, loss_accumulated.data, inputs.ids_T.data},
                     arena, sink, batch, selections);
    impl_->ops.repeat(key, pass);
}

double Llama::loss_and_gradient(TensorView weights, GradientSink const& sink, Batch const& batch,
                                std::span<Selection const> selections, Arena& arena) {
    Arena::Scope const scope(arena);
    LossSum const sum(impl_->ops, arena);
    accumulate(weights, sink, sum.view, batch, selections, arena);
    return sum.read();
}

BlockChoices Llama::choices(TensorView weights, Batch const& batch, std::span<Selection const> selections,
                            Arena& arena) {
    Arena::Scope const scope(arena);
    LocalBatch const local = impl_->share(batch, selections);
    Impl::Inputs const inputs = impl_->upload(local, arena);
    Impl::Forward const state = impl_->forward(weights, inputs, selections, arena, true);
    auto const sparse = std::ranges::find_if_not(selections, is_full);
    int64_t const block_size = sparse != selections.end() ? budget_of(*sparse)->block_size : batch.tokens();
    BlockChoices result(batch.cu_seqlens, block_size, impl_->options.num_attention_heads);
    for (size_t layer = 0; layer < selections.size(); ++layer) {
        if (is_full(selections[layer]))
            result.add_full_layer();
        else
            result.add_sparse_layer(impl_->count_choices(state.pass, state.blocks[layer].attention, result));
    }
    return result;
}

/// The same on every rank.
std::vector<float> Llama::Impl::logits_of_token(TensorView weights, Forward const& state, ContextShard const& shard,
                                                int64_t token, Arena& arena) const {
    int64_t const vocab = options.vocab_size, tp = mesh.shape().tp;
    TensorView const logits = arena.allocate("logits", state.pass.compute(), {1, vocab}, Use::logits);
    Place const place = find_token(shard, token);
    if (place.cp_rank == mesh.cp_rank()) {
        TensorView const part =
            tp > 1 ? arena.allocate("part of logits", state.pass.compute(), {1, vocab / tp}) : logits;
        ops.matmul({.c = part,
                    .a = state.pass.stream.gather(state.normed_PD).rows(place.row, place.row + 1),
                    .b = classifier(weights),
                    .transpose_b = true});
        if (tp > 1) mesh.tp().all_gather(ops.device().queue(), logits, part);
    }
    mesh.cp().broadcast(ops.device().queue(), logits, place.cp_rank);
    return host_floats(ops, logits);
}

std::vector<float> Llama::next_logits(TensorView weights, Batch const& batch, std::span<Selection const> selections,
                                      Arena& arena) {
    Arena::Scope const scope(arena);
    MeshShape const& mesh = impl_->mesh.shape();
    Batch const pack = padded(batch, mesh.tp * mesh.cp);
    LocalBatch const local = impl_->share(pack, selections);
    Impl::Inputs const inputs = impl_->upload(local, arena);
    Impl::Forward const state = impl_->forward(weights, inputs, selections, arena, false);
    return impl_->logits_of_token(weights, state, local.shard(), batch.tokens() - 1, arena);
}

std::vector<float> Llama::next_logits(TensorView weights, std::span<int32_t const> ids,
                                      std::span<Selection const> selections, KvCache& cache, Arena& arena) {
    Arena::Scope const scope(arena);
    PERIGEE_CHECK(impl_->mesh.shape().cp == 1, "a cache on a mesh with cp {}", impl_->mesh.shape().cp);
    int64_t const past = cache.tokens(), added = std::ssize(ids), tp = impl_->mesh.shape().tp;
    PERIGEE_CHECK(added > 0 && past + added <= cache.capacity(), "{} tokens after {} in a cache for {}", added, past,
                  cache.capacity());
    // Padding comes after the text, where no token of it looks, and is overwritten by the next call.
    auto const rows = static_cast<int32_t>((added + tp - 1) / tp * tp);
    Batch batch{.ids_T = {ids.begin(), ids.end()},
                .targets_T = {},
                .weights_T = {},
                .positions_T = {},
                .cu_seqlens = {0, rows}};
    for (int32_t t = 0; t < rows; ++t) batch.positions_T.push_back(static_cast<int32_t>(past) + t);
    batch.ids_T.resize(batch.positions_T.size());
    batch.targets_T.resize(batch.positions_T.size());
    batch.weights_T.resize(batch.positions_T.size());
    LocalBatch const local = impl_->share(batch, selections);
    Impl::Inputs inputs = impl_->upload(local, arena);
    int32_t const cu_seqlens[] = {0, static_cast<int32_t>(past) + rows};
    inputs.cu_seqlens = cu_seqlens;
    inputs.past = &cache;
    Impl::Forward const state = impl_->forward(weights, inputs, selections, arena, false);
    auto logits = impl_->logits_of_token(weights, state, local.shard(), added - 1, arena);
    cache.set_tokens(past + added);
    return logits;
}

std::vector<float> Llama::logits(TensorView weights, Batch const& batch, std::span<Selection const> selections,
                                 Arena& arena) {
    Arena::Scope const scope(arena);
    PERIGEE_CHECK(impl_->mesh.shape().tp * impl_->mesh.shape().cp == 1, "a mesh with cp {} and tp {}",
                  impl_->mesh.shape().cp, impl_->mesh.shape().tp);
    LocalBatch const local = impl_->share(batch, selections);
    Impl::Inputs const inputs = impl_->upload(local, arena);
    Impl::Forward const state = impl_->forward(weights, inputs, selections, arena, false);
    TensorView const logits =
        arena.allocate("logits", state.pass.compute(), {batch.tokens(), impl_->options.vocab_size});
    impl_->ops.matmul({.c = logits, .a = state.normed_PD, .b = impl_->classifier(weights), .transpose_b = true});
    return host_floats(impl_->ops, logits);
}

}  // namespace perigee
