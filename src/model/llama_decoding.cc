// Passes of Llama over the next tokens of texts in a cache: chunks of a text by training's operations, and one token of
// each of several texts by those of decoding.
#include <algorithm>
#include <bit>

#include "model/block_decoding.h"
#include "model/llama_impl.h"
#include "ops/sampling.h"

namespace perigee {

namespace {

/// These tokens, at these positions; without targets and loss.
Batch batch_of(std::span<int32_t const> ids, std::vector<int32_t> positions) {
    Batch batch{.ids_T = {ids.begin(), ids.end()},
                .targets_T = std::vector<int32_t>(positions.size()),
                .weights_T = std::vector<float>(positions.size()),
                .positions_T = std::move(positions),
                .cu_seqlens = {}};
    batch.ids_T.resize(batch.positions_T.size());
    batch.cu_seqlens = {0, static_cast<int32_t>(batch.ids_T.size())};
    return batch;
}

/// Everything that the operations of a step depend on besides the contents of memory: the addresses of `memory`, the
/// cache, and the rules of selection.
std::vector<int64_t> decoding_key(std::initializer_list<void const*> memory, int64_t rows, KvCache const& cache,
                                  std::span<Selection const> selections) {
    CachePages const pages = cache.pages(0, 0, rows);
    std::vector<int64_t> key = {rows, pages.k_NPGK[0], pages.page_size(), pages.block_size, pages.table_SM[1]};
    for (void const* address : memory) key.push_back(std::bit_cast<int64_t>(address));
    for (void const* address :
         {static_cast<void const*>(pages.k_NPGK.data), static_cast<void const*>(pages.table_SM.data)})
        key.push_back(std::bit_cast<int64_t>(address));
    add_rules(key, selections);
    return key;
}

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

void Llama::Impl::open_cache(BlockActivations& acts, Inputs const& inputs, int64_t layer) const {
    if (inputs.decodes()) {
        AttentionProblem const problem = attention_problem(inputs);
        acts.decoding = {inputs.cache->pages(layer, 0, inputs.lengths_S.size()), inputs.lengths_S, problem.first_head,
                         problem.scale};
    }
    if (!inputs.extends_text()) return;
    KvCache const& cache = *inputs.cache;
    int64_t const past = cache.tokens(inputs.text), end = past + inputs.local.batch().tokens();
    TensorView k_TGK = inputs.k_TGK, v_TGK = inputs.v_TGK;
    if (k_TGK.empty()) {
        KvCache::Run const whole = cache.runs(inputs.text, 0, end).front();
        k_TGK = cache.keys(layer, whole), v_TGK = cache.values(layer, whole);
    } else {
        for (KvCache::Run const& run : cache.runs(inputs.text, 0, past)) {
            ops.copy(k_TGK.rows(run.begin, run.end), cache.keys(layer, run));
            ops.copy(v_TGK.rows(run.begin, run.end), cache.values(layer, run));
        }
    }
    acts.attention.attended.k_TGK = k_TGK, acts.attention.attended.v_TGK = v_TGK;
    acts.attention.local.k_TGK = k_TGK.rows(past, end), acts.attention.local.v_TGK = v_TGK.rows(past, end);
}

void Llama::Impl::close_cache(BlockActivations const& acts, Inputs const& inputs, int64_t layer,
                              Selection const& selection) const {
    if (!inputs.extends_text()) return;
    KvCache const& cache = *inputs.cache;
    int64_t const past = cache.tokens(inputs.text), end = past + inputs.local.batch().tokens();
    if (!inputs.k_TGK.empty())
        for (KvCache::Run const& run : cache.runs(inputs.text, past, end)) {
            ops.copy(cache.keys(layer, run), acts.attention.attended.k_TGK.rows(run.begin, run.end));
            ops.copy(cache.values(layer, run), acts.attention.attended.v_TGK.rows(run.begin, run.end));
        }
    int64_t const B = cache.block_size(), first = past / B, complete = (past + inputs.added) / B;
    if (std::holds_alternative<MobaOptions>(selection) && complete > first)
        ops.pool_blocks(
            {.pages = cache.pages(layer, inputs.text, inputs.text + 1), .first = first, .count = complete - first});
}

std::vector<float> Llama::next_logits(WeightUnits& weights, std::span<int32_t const> ids,
                                      std::span<Selection const> selections, KvCache& cache, Arena& arena,
                                      int64_t text) {
    Arena::Scope const scope(arena);
    MeshShape const& mesh = impl_->mesh.shape();
    PERIGEE_CHECK(mesh.cp == 1, "a cache on a mesh with cp {}", mesh.cp);
    int64_t const past = cache.tokens(text), added = std::ssize(ids), end = past + round_up(added, mesh.tp);
    PERIGEE_CHECK(added > 0 && past + added <= cache.capacity() && cache.make_room(text, past + added),
                  "{} tokens after {} in a cache for {} with {} free pages of {}", added, past, cache.capacity(),
                  cache.free_pages(), cache.page_size());
    cache.set_tokens(past, text);  // what lies behind changes: another state, also if this fails
    // Padding comes after the text, where no token of it looks, and is overwritten by the next call.
    std::vector<int32_t> positions;
    for (int64_t t = past; t < end; ++t) positions.push_back(static_cast<int32_t>(t));
    Batch const batch = batch_of(ids, std::move(positions));
    LocalBatch const local = impl_->share(batch, selections);
    Impl::Inputs inputs = impl_->upload(local, arena);
    int32_t const cu_seqlens[] = {0, static_cast<int32_t>(end)};
    inputs.cu_seqlens = cu_seqlens;
    inputs.cache = &cache, inputs.text = text, inputs.added = added;
    if (cache.runs(text, 0, end).size() > 1) {
        Shape const shape{end, impl_->options.kv_heads() / mesh.tp, impl_->options.head_size()};
        inputs.k_TGK = arena.allocate("keys of the text", impl_->ops.compute_dtype(), shape);
        inputs.v_TGK = arena.allocate("values of the text", impl_->ops.compute_dtype(), shape);
    }
    Impl::Forward const state = impl_->forward(weights, inputs, selections, arena);
    auto logits = impl_->logits_of_token(weights, state, local.shard(), added - 1, arena);
    cache.set_tokens(past + added, text);
    return logits;
}

/// One decoding step on one tp rank, without adapters: from token ids to logits [rows, V].
void Llama::Impl::decode_whole(WeightUnits& weights, Inputs const& inputs, std::span<Selection const> selections,
                               TensorView logits_SV, Arena& arena) const {
    PERIGEE_CHECK(options.key_conv == 0, "a cache has no keys from before their convolution");
    Arena::Scope const scope(arena);
    int64_t const rows = inputs.lengths_S.size(), R = options.head_size() / 2;
    DecodeTensors tensors = allocate_decoding(arena, ops, options, rows, selections);
    TensorView const cos_SR = arena.allocate("cos", ops.main_dtype(), {rows, R});
    TensorView const sin_SR = arena.allocate("sin", ops.main_dtype(), {rows, R});
    ops.rope_table({cos_SR, sin_SR, inputs.positions_T, rope.inverse_frequencies, rope.magnitude});
    tensors.cos_SR = cos_SR, tensors.sin_SR = sin_SR;
    {
        Needed const unit(weights, kEmbeddingUnit, block_unit(0));
        ops.embedding_forward({tensors.x_SD, inputs.ids_T, embedding.in(unit.memory()), 0});
    }
    AttentionProblem const problem = attention_problem(inputs);
    for (int64_t layer = 0; layer < std::ssize(selections); ++layer) {
        Needed const unit(weights, block_unit(layer), next_block(layer + 1));
        Decoding const decoding{inputs.cache->pages(layer, 0, rows), inputs.lengths_S, problem.first_head,
                                problem.scale};
        block_decode(ops, options, block(layer, unit.memory()), tensors, decoding,
                     selections[static_cast<size_t>(layer)]);
    }
    Needed const of_head(weights, head(), -1), of_classifier(weights, classifier_unit(), -1);
    ops.normed_product({.y_SN = logits_SV,
                        .x_SD = tensors.x_SD,
                        .norm_D = final_norm.in(of_head.memory()),
                        .w_ND = classifier(of_classifier.memory()),
                        .eps = options.rms_norm_eps});
}

/// The same for any tp and with adapters. Writes the logits of this rank's part of the vocabulary.
void Llama::Impl::decode_step(WeightUnits& weights, Inputs const& inputs, std::span<Selection const> selections,
                              TensorView logits_SV, Arena& arena) const {
    if (mesh.shape().tp == 1 && options.lora.rank == 0)
        return decode_whole(weights, inputs, selections, logits_SV, arena);
    Arena::Scope const scope(arena);
    Forward const state = forward(weights, inputs, selections, arena);
    Needed const of_head(weights, head(), -1), of_classifier(weights, classifier_unit(), -1);
    normalise(of_head, state);
    ops.matmul({.c = logits_SV,
                .a = state.pass.stream.gather(state.normed_PD),
                .b = classifier(of_classifier.memory()),
                .transpose_b = true});
}

/// Where each text goes on: -1 for those that do not.
std::vector<int32_t> Llama::Impl::take_places(std::span<int32_t const> ids, KvCache& cache, int64_t rows) const {
    PERIGEE_CHECK(mesh.shape().cp == 1 && !ids.empty() && std::ssize(ids) <= cache.texts(),
                  "{} texts of a cache for {} on a mesh with cp {}", ids.size(), cache.texts(), mesh.shape().cp);
    std::vector<int32_t> lengths(static_cast<size_t>(rows), -1);
    for (int64_t text = 0; text < std::ssize(ids); ++text) {
        if (ids[static_cast<size_t>(text)] < 0) continue;
        int64_t const past = cache.tokens(text);
        PERIGEE_CHECK(past < cache.capacity() && cache.make_room(text, past + 1),
                      "text {} of {} tokens in a cache for {} with {} free pages", text, past, cache.capacity(),
                      cache.free_pages());
        cache.set_tokens(past, text);  // what lies behind changes: another state, also if this fails
        lengths[static_cast<size_t>(text)] = static_cast<int32_t>(past);
    }
    return lengths;
}

/// Logits of this rank's part of the vocabulary, [S or more, V / tp]. They live in the caller's scope of the arena.
TensorView Llama::Impl::decode(WeightUnits& weights, std::span<int32_t const> ids,
                               std::span<Selection const> selections, KvCache& cache, Arena& arena) const {
    int64_t const tp = mesh.shape().tp, texts = std::ssize(ids), vocab = options.vocab_size;
    auto const lengths = take_places(ids, cache, round_up(texts, tp));
    int64_t const rows = std::ssize(lengths);
    // Ids, positions and lengths: one upload.
    std::vector<int32_t> numbers(static_cast<size_t>(3 * rows));
    for (int64_t row = 0; row < rows; ++row) {
        auto const i = static_cast<size_t>(row);
        numbers[i] = row < texts ? std::max(ids[i], 0) : 0;
        numbers[i + lengths.size()] = std::max(lengths[i], 0);
        numbers[i + 2 * lengths.size()] = lengths[i];
    }
    DecodeMemory const step{arena.allocate("tokens", DType::i32, {3 * rows}),
                            arena.allocate("logits", ops.compute_dtype(), {rows, vocab / tp}, Use::logits)};
    ops.upload(step.numbers_R, numbers.data());
    queue_step(weights, step, lengths, selections, cache, arena);
    for (int64_t text = 0; text < texts; ++text)
        if (lengths[static_cast<size_t>(text)] >= 0) cache.set_tokens(cache.tokens(text) + 1, text);
    return step.logits_SV;
}

/// What a step that can be repeated depends on; empty: it cannot.
std::vector<int64_t> Llama::Impl::step_key(WeightUnits& weights, DecodeMemory const& step, int64_t rows,
                                           KvCache const& cache, std::span<Selection const> selections,
                                           Arena& arena) const {
    if (mesh.shape().tp > 1 || !weights.settled()) return {};
    Arena::Scope const scope(arena);
    void const* const activations = arena.allocate("first of a step", DType::u8, {1}).data;
    auto key = decoding_key(
        {this, &arena, activations, weights.need(kEmbeddingUnit, -1).data, step.numbers_R.data, step.logits_SV.data},
        rows, cache, selections);
    key.push_back(arena.growths());
    weights.release(kEmbeddingUnit);
    return key;
}

/// Returns its step_key.
std::vector<int64_t> Llama::Impl::queue_step(WeightUnits& weights, DecodeMemory const& step,
                                             std::span<int32_t const> lengths, std::span<Selection const> selections,
                                             KvCache const& cache, Arena& arena) const {
    int64_t const rows = std::ssize(lengths);
    Batch const batch = batch_of({}, {lengths.begin(), lengths.end()});  // the operations read ids on the device
    LocalBatch const local = share(batch, selections);
    Inputs const inputs{.local = local,
                        .cu_seqlens = batch.cu_seqlens,
                        .cache = &cache,
                        .lengths_S = step.numbers_R.rows(2 * rows, 3 * rows),
                        .ids_T = step.numbers_R.rows(0, rows),
                        .positions_T = step.numbers_R.rows(rows, 2 * rows),
                        .targets_T = {},
                        .weights_T = {}};
    auto key = step_key(weights, step, rows, cache, selections, arena);
    ops.repeat(key, [&] { decode_step(weights, inputs, selections, step.logits_SV, arena); });
    return key;
}

std::vector<float> Llama::decode(WeightUnits& weights, std::span<int32_t const> ids,
                                 std::span<Selection const> selections, KvCache& cache, Arena& arena) {
    Arena::Scope const scope(arena);
    TensorView const part_SV = impl_->decode(weights, ids, selections, cache, arena);
    return impl_->join_logits(part_SV, std::ssize(ids), arena);
}

/// Draws a token that the device left to the host.
int32_t Llama::Impl::draw_on_host(ConstView logits_V, DrawRule const& rule, TensorView seen_W, int64_t allowed) const {
    std::vector<int32_t> words(static_cast<size_t>(seen_W.empty() ? 0 : seen_W.size())), seen;
    if (!words.empty()) ops.download(words.data(), seen_W);
    for (int64_t id = 0; id < 32 * std::ssize(words); ++id)
        if ((words[static_cast<size_t>(id / 32)] >> id % 32 & 1) != 0) seen.push_back(static_cast<int32_t>(id));
    std::vector<float> const floats = host_floats(logits_V);
    int32_t const id = draw_token(std::span(floats).first(static_cast<size_t>(allowed)), rule, seen);
    if (!words.empty()) {
        words[static_cast<size_t>(id / 32)] |= static_cast<int32_t>(1u << id % 32);
        ops.upload(seen_W, words.data());
    }
    return id;
}

std::vector<int32_t> Llama::decode(WeightUnits& weights, std::span<int32_t const> ids,
                                   std::span<Selection const> selections, KvCache& cache, Arena& arena,
                                   TokenDraws const& draws) {
    Arena::Scope const scope(arena);
    Impl& impl = *impl_;
    int64_t const texts = std::ssize(ids);
    PERIGEE_CHECK(impl.mesh.shape().tp == 1 && std::ssize(draws.rules) == texts, "{} draws of {} texts with tp {}",
                  draws.rules.size(), texts, impl.mesh.shape().tp);
    if (draws.ahead && texts == 1 && ids[0] >= 0 && draws.rules[0].index >= 0 && weights.settled())
        return {impl.decode_ahead(weights, ids[0], selections, cache, arena, draws)};
    TensorView const ids_S = arena.allocate("drawn", DType::i32, {texts});
    TensorView const rules_SB = arena.allocate("rules", DType::u8, {texts, static_cast<int64_t>(sizeof(DrawRule))});
    impl.ops.upload(rules_SB, draws.rules.data());
    TensorView const logits_SV = impl.decode(weights, ids, selections, cache, arena).rows(0, texts);
    impl.ops.sample_tokens({.ids_S = ids_S,
                            .logits_SV = logits_SV,
                            .rules_SB = rules_SB,
                            .seen_SW = draws.seen_SW,
                            .allowed = draws.allowed});
    std::vector<int32_t> drawn(ids.size());
    impl.ops.download(drawn.data(), ids_S);
    for (int64_t text = 0; text < texts; ++text) {
        auto const i = static_cast<size_t>(text);
        if (drawn[i] >= 0 || draws.rules[i].index < 0) continue;
        TensorView const seen_W = draws.seen_SW.empty() ? TensorView() : draws.seen_SW.rows(text, text + 1);
        drawn[i] = impl.draw_on_host(logits_SV.rows(text, text + 1), draws.rules[i], seen_W, draws.allowed);
    }
    return drawn;
}

/// Of the first texts, from every tp rank's part of the vocabulary: the same on every rank.
std::vector<float> Llama::Impl::join_logits(TensorView part_SV, int64_t texts, Arena& arena) const {
    int64_t const tp = mesh.shape().tp, part = part_SV[1];
    if (tp == 1) return host_floats(part_SV.rows(0, texts));
    TensorView const all = arena.allocate("all logits", part_SV.dtype, {tp * part_SV[0], part}, Use::logits);
    mesh.tp().all_gather(ops.device().queue(), all, part_SV);
    std::vector<float> const by_rank = host_floats(all);
    std::vector<float> logits;
    for (int64_t text = 0; text < texts; ++text)
        for (int64_t rank = 0; rank < tp; ++rank) {
            auto const from = by_rank.begin() + (rank * part_SV[0] + text) * part;
            logits.insert(logits.end(), from, from + part);
        }
    return logits;
}

}  // namespace perigee
