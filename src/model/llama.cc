#include "model/llama.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "model/linear.h"
#include "model/llama_impl.h"

namespace perigee {

namespace {

char const* const kEmbedding = "model.embed_tokens.weight";
char const* const kFinalNorm = "model.norm.weight";
char const* const kClassifier = "lm_head.weight";

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

}  // namespace

LocalBatch Llama::Impl::share(Batch const& batch, std::span<Selection const> selections) const {
    check_batch(batch, selections, options);
    // MoBA's blocks are long stretches of neighbours, so only full attention is better balanced as zigzag.
    bool const zigzag = context_modes.full == ContextMode::allgather && batch.tokens() % (2 * mesh.shape().cp) == 0 &&
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
            .head_groups = mesh.head_groups(),
            .head_dim = options.head_size(),
            .scale = 1 / std::sqrt(static_cast<double>(options.head_size())),
            .cu_seqlens = inputs.cu_seqlens,
            .past = inputs.extends_text() ? inputs.cache->tokens(inputs.text) : 0};
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

/// Of a tp rank's part of the tokens, in a chunk of the MLP.
int64_t Llama::Impl::mlp_rows(int64_t tokens) const {
    int64_t const tp = mesh.shape().tp, part = tokens / tp;
    return policy.mlp_chunk == 0 ? part : std::clamp<int64_t>(policy.mlp_chunk / tp, 1, part);
}

Pass Llama::Impl::begin(Inputs const& inputs, std::span<Selection const> selections, Arena& arena) const {
    LocalBatch const& local = inputs.local;
    Batch const& batch = local.batch();
    int64_t const T = batch.tokens(), R = options.head_size() / 2;
    int64_t const tp = mesh.shape().tp, D = options.hidden_size;
    TensorView const whole_TD =
        tp > 1 ? arena.allocate("whole", ops.compute_dtype(), {T, D}, Use::communication) : TensorView();
    Pass pass{.ops = ops,
              .options = options,
              .mesh = mesh,
              .stream = {ops, mesh.tp(), whole_TD},
              .attention = {ops, mesh.cp(), modes_of_layers(context_modes, selections), local.shard(),
                            attention_problem(inputs), arena},
              .tokens = T,
              .mlp_rows = mlp_rows(T)};
    pass.cos_TR = arena.allocate("cos", pass.statistics(), {T, R});
    pass.sin_TR = arena.allocate("sin", pass.statistics(), {T, R});
    pass.branch_PD = arena.allocate("branch", pass.compute(), {pass.part(), D});
    pass.qkv_TX = arena.allocate("qkv", pass.compute(), {T, pass.qkv_width()});
    if (options.key_conv > 0) pass.dkey_TC = arena.allocate("dkeys", pass.compute(), {T, pass.key_width()});
    pass.positions_T = inputs.positions_T;
    if (inputs.dropout != nullptr) pass.dropout = *inputs.dropout;
    if (options.lora.rank > 0) pass.adapters = allocate_adapters(arena, pass);
    ops.rope_table({pass.cos_TR, pass.sin_TR, inputs.positions_T, rope.inverse_frequencies, rope.magnitude});
    return pass;
}

/// Allocates memory for quantised operands. Only training uses them.
void Llama::Impl::allocate_for_precision(Pass& pass, Arena& arena) const {
    auto const linears = block_linears(options, pass.tokens, pass.mlp_tokens(), mesh.shape().tp);
    if (std::ranges::any_of(linears, [&](NamedLinear const& of) { return takes_fp8(precision, of.shape); }))
        pass.quantised = allocate_quantised(arena, pass, precision);
}

/// Precision of a layer's products.
PrecisionOptions const* Llama::Impl::precision_of(Pass const& pass, int64_t layer) const {
    bool const fp8 = pass.quantised && in_fp8_layers(precision, layer, options.num_hidden_layers);
    return fp8 ? &precision : nullptr;
}

/// Up to the last block. What `kept` says stays for the backward; without it all layers use the same memory.
Llama::Impl::Forward Llama::Impl::forward(WeightUnits& weights, Inputs const& inputs,
                                          std::span<Selection const> selections, Arena& arena,
                                          MemoryPolicy const* kept) const {
    Forward state{.pass = begin(inputs, selections, arena)};
    Pass const& pass = state.pass;
    state.x_PD = arena.allocate("final x", pass.compute(), {pass.part(), options.hidden_size});
    state.rstd_P = arena.allocate("final rstd", pass.statistics(), {pass.part()});
    state.normed_PD = arena.allocate("final normed", pass.compute(), {pass.part(), options.hidden_size});

    if (kept == nullptr)
        state.blocks.push_back(allocate_activations(arena, pass, selections));
    else
        state.blocks = allocate_activations(arena, pass, selections, *kept);
    if (kept == &policy) allocate_for_precision(state.pass, arena);
    ConstView previous_PD;
    for (size_t layer = 0; layer < selections.size(); ++layer) {
        BlockActivations acts = state.blocks[kept == nullptr ? 0 : layer];
        if (kept == nullptr) pass.attention.arrange(acts.attention, selections[layer]);
        if (kept == &policy) offload->begin_forward(layer);
        auto const index = static_cast<int64_t>(layer);
        open_cache(acts, inputs, index);
        if (layer == 0) {
            Needed const unit(weights, kEmbeddingUnit, block_unit(0));
            ops.embedding_forward(
                {pass.stream.partial(acts.x_PD), inputs.ids_T, embedding.in(unit.memory()), vocab_begin()});
            pass.stream.add_up(acts.x_PD);
        }
        Needed const unit(weights, block_unit(index), next_block(index + 1));
        state.pass.precision = precision_of(state.pass, index);
        state.pass.forward_counts = layer_counts(inputs.counts, index);
        block_forward(pass, block(index, unit.memory()), acts, previous_PD, selections[layer]);
        close_cache(acts, inputs, index, selections[layer]);
        previous_PD = acts.mid_PD;
        if (kept == &policy) offload->end_forward(layer, acts.kept);
    }
    state.pass.forward_counts = {};  // what the backward computes again is not counted again
    return state;
}

/// The final norm.
void Llama::Impl::normalise(Needed const& of_head, Forward const& state) const {
    ops.rmsnorm_forward({.y_TD = state.normed_PD,
                         .rstd_T = state.rstd_P,
                         .x_TD = state.blocks.back().mid_PD,
                         .w_D = final_norm.in(of_head.memory()),
                         .eps = options.rms_norm_eps,
                         .residual_TD = state.pass.branch_PD,
                         .sum_TD = state.x_PD});
}

/// temporary.dx_PD holds the gradient of the last block's output, and becomes that of the embedding's.
void Llama::Impl::backward(WeightUnits& weights, GradientSink const& sink, Forward& state,
                           BlockGradients const& temporary, std::span<Selection const> selections) const {
    // Offloaded activations come back in layer order, so every layer takes part.
    int64_t const last = policy.offload > 0 ? 0 : first_trained;
    for (int64_t layer = std::ssize(selections); layer-- > last;) {
        auto const index = static_cast<size_t>(layer);
        int const unit = block_unit(layer);
        Needed const needed(weights, unit, layer > last ? block_unit(layer - 1) : -1);
        TensorView const unit_grads = begin_gradients(sink.grads, unit);
        offload->begin_backward(index);
        state.pass.precision = precision_of(state.pass, layer);
        state.pass.backward_counts = layer_counts(sink.counts, layer);
        BlockTensors const tensors = block(layer, needed.memory());
        block_backward(state.pass, tensors, block(layer, unit_grads), state.blocks[index], temporary,
                       selections[index]);
        if (!sink.stream_rstd_LP.empty() && layer >= first_trained)  // the norm's statistics; its result is not read
            ops.rmsnorm_forward({.y_TD = temporary.dnormed_PD,
                                 .rstd_T = sink.stream_rstd_LP.rows(layer, layer + 1).reshape({sink.stream_rstd_LP[1]}),
                                 .x_TD = temporary.dx_PD,
                                 .w_D = tensors.input_norm_D});
        if (auto const earlier = offload->before(index)) offload->bring_back(*earlier, state.blocks[*earlier].kept);
        end_gradients(sink.grads, unit);
    }
}

namespace {

MemoryPolicy complete(MemoryPolicy policy, int64_t layers) {
    policy.recompute.resize(static_cast<size_t>(layers), Recompute::none);
    if (policy.mlp_chunk > 0)
        for (Recompute& level : policy.recompute) level = std::max(level, Recompute::mlp);
    policy.offload = std::clamp<int64_t>(policy.offload, 0, std::max<int64_t>(layers - 2, 0));
    return policy;
}

}  // namespace

Llama::Llama(ModelOptions const& options, ModelLayouts const& layouts, Mesh const& mesh, Ops& ops, MemoryPolicy policy,
             PrecisionOptions const& precision)
    : impl_(new Impl{.options = options,
                     .layouts = layouts,
                     .mesh = mesh,
                     .ops = ops,
                     .policy = complete(std::move(policy), options.num_hidden_layers),
                     .precision = precision,
                     .rope = make_rope(options),
                     .context_modes = resolve_context_modes(mesh.context_mode(), mesh.shape(), options.kv_heads()),
                     .embedding = layouts.place(kEmbedding),
                     .final_norm = layouts.place(kFinalNorm),
                     .lm_head = options.tie_word_embeddings ? UnitPlace() : layouts.place(kClassifier)}) {
    for (int64_t layer = 0; layer < options.num_hidden_layers; ++layer)
        impl_->blocks.emplace_back(impl_->layouts, options, layer);
    int64_t& first = impl_->first_trained;
    while (!impl_->trains(kEmbeddingUnit) && first < options.num_hidden_layers && !impl_->trains(block_unit(first)))
        ++first;
    impl_->offload = std::make_unique<Offload>(ops.device(), options.num_hidden_layers, impl_->policy.offload);
    ops.forget_repeated();  // of an earlier model, whose place in memory this one may have
}

Llama::~Llama() = default;

int64_t Llama::offloaded_bytes() const { return impl_->offload->bytes(); }

void Llama::Impl::train(WeightUnits& weights, GradientSink const& sink, TensorView loss_accumulated,
                        Inputs const& inputs, std::span<Selection const> selections, Arena& arena) const {
    Arena::Scope const scope(arena);
    Forward state = forward(weights, inputs, selections, arena, &policy);
    GradientUnits& grads = sink.grads;
    Pass& pass = state.pass;
    pass.fresh = grads.fresh();
    BlockGradients const temporary = allocate_gradients(arena, pass);
    if (options.lora.rank > 0) allocate_adapter_gradients(arena, pass, pass.adapters);
    if (layouts.frozen != nullptr)
        pass.unwanted = arena.allocate("unwanted gradients", pass.statistics(),
                                       {std::max({options.hidden_size, pass.qkv_width(), options.head_size(),
                                                  pass.key_width() * options.key_conv})});
    TensorView const head_grads = begin_gradients(grads, head());
    TensorView const embedding_grads =
        options.tie_word_embeddings ? begin_gradients(grads, kEmbeddingUnit) : TensorView();
    {
        Needed const of_head(weights, head(), block_unit(options.num_hidden_layers - 1));
        Needed const of_classifier(weights, classifier_unit(), -1);
        normalise(of_head, state);
        // The classifier makes gradients with its loss.
        ops.device().phases().enter(ops.device().queue(), Phase::backward);
        classifier_loss(ops, mesh.tp(), arena, classifier_inputs(of_classifier, inputs, state),
                        {.loss_accumulated = loss_accumulated,
                         .dx_TD = pass.stream.partial(temporary.dnormed_PD),
                         .dw_accumulated_VD = classifier(options.tie_word_embeddings ? embedding_grads : head_grads),
                         .fresh = pass.fresh,
                         .scale = sink.scale});
        pass.stream.add_up(temporary.dnormed_PD);
        ops.rmsnorm_backward(
            {.dx_TD = temporary.dx_PD,
             .dw_accumulated_D = pass.wanted(final_norm.in(head_grads), final_norm.in(of_head.memory())),
             .dy_TD = temporary.dnormed_PD,
             .x_TD = state.x_PD,
             .w_D = final_norm.in(of_head.memory()),
             .rstd_T = state.rstd_P});
    }
    end_gradients(grads, head());
    backward(weights, sink, state, temporary, selections);
    if (!trains(kEmbeddingUnit)) return;
    ops.embedding_backward(
        {embedding.in(options.tie_word_embeddings ? embedding_grads : begin_gradients(grads, kEmbeddingUnit)),
         inputs.ids_T, pass.stream.gather(temporary.dx_PD), vocab_begin()});
    end_gradients(grads, kEmbeddingUnit);
}

DropoutPass Llama::Impl::dropout_of(GradientSink const& sink, ContextShard const& shard, int64_t first_token) const {
    DropoutPass dropout{.rate = options.lora.rank > 0 ? options.lora.dropout : 0, .seed = sink.seed, .step = sink.step};
    for (TokenRange const& range : shard.ranges()) dropout.tokens.push_back({range.size(), first_token + range.begin});
    return dropout;
}

void add_rules(std::vector<int64_t>& key, std::span<Selection const> selections) {
    for (Selection const& selection : selections) {
        BlockBudget const budget = budget_of(selection).value_or(BlockBudget{});
        key.insert(key.end(), {static_cast<int64_t>(selection.index()), budget.block_size, budget.top_k});
        if (auto const* const gate = std::get_if<MobaOptions>(&selection))
            key.insert(key.end(), {static_cast<int64_t>(gate->selection), gate->force_previous, gate->force_first});
        if (auto const* const random = std::get_if<RandomBlocks>(&selection))
            key.insert(key.end(), {static_cast<int64_t>(random->seed), random->layer});
    }
}

namespace {

/// Everything that the operations of a training pass depend on: the addresses of `memory`, how often the arena has
/// moved, and what differs between batches but for the classifier's chunks.
std::vector<int64_t> training_key(std::initializer_list<void const*> memory, Arena const& arena,
                                  GradientSink const& sink, Batch const& batch, std::span<Selection const> selections) {
    std::vector<int64_t> key = {arena.growths(), std::bit_cast<int64_t>(sink.scale), int64_t{sink.grads.fresh()},
                                std::bit_cast<int64_t>(sink.counts.data),
                                std::bit_cast<int64_t>(sink.stream_rstd_LP.data)};
    for (void const* address : memory) key.push_back(std::bit_cast<int64_t>(address));
    add_rules(key, selections);
    key.insert(key.end(), batch.cu_seqlens.begin(), batch.cu_seqlens.end());
    return key;
}

}  // namespace

void Llama::accumulate(WeightUnits& weights, GradientSink const& sink, TensorView loss_accumulated, Batch const& batch,
                       std::span<Selection const> selections, Arena& arena) {
    Arena::Scope const scope(arena);
    LocalBatch const local = impl_->share(batch, selections);
    Impl::Inputs inputs = impl_->upload(local, arena);
    DropoutPass const dropout = impl_->dropout_of(sink, local.shard(), batch.first_token);
    inputs.dropout = &dropout;
    inputs.counts = sink.counts;
    auto const pass = [&] { impl_->train(weights, sink, loss_accumulated, inputs, selections, arena); };
    MeshShape const& shape = impl_->mesh.shape();
    bool const alone = shape.tp * shape.cp == 1 && weights.settled() && sink.grads.settled();
    if (dropout.rate > 0) return pass();                                          // masks differ between steps
    if (!alone || impl_->policy.offload > 0) return impl_->ops.repeat({}, pass);  // other ranks or lanes take part
    void const* const first_weight = weights.need(kEmbeddingUnit, -1).data;
    void const* const first_gradient = sink.grads.begin(kEmbeddingUnit).data;
    auto key =
        training_key({impl_.get(), &arena, first_weight, first_gradient, loss_accumulated.data, inputs.ids_T.data},
                     arena, sink, batch, selections);
    auto const chunks = chunks_with_loss(impl_->ops, batch.weights_T, impl_->options.vocab_size);
    key.insert(key.end(), chunks.begin(), chunks.end());
    impl_->ops.repeat(key, pass);
}

double Llama::loss_and_gradient(WeightUnits& weights, GradientSink const& sink, Batch const& batch,
                                std::span<Selection const> selections, Arena& arena) {
    Arena::Scope const scope(arena);
    LossSum const sum(impl_->ops, arena);
    accumulate(weights, sink, sum.view, batch, selections, arena);
    return sum.read();
}

}  // namespace perigee
