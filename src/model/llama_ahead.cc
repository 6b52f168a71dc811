// Decoding of one text whose next step is queued before its token has reached the host. The device then never waits for
// the host between two tokens.
#include "model/llama_impl.h"

namespace perigee {

namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kPause = 64;  // tokens

}  // namespace

DecodeAhead::DecodeAhead(Ops& ops, int64_t vocabulary) {
    DType const type = ops.compute_dtype();
    int64_t const of_logits = (vocabulary * size_of(type) + kAlignment - 1) / kAlignment * kAlignment;
    memory = Buffer(ops.device(), static_cast<size_t>(2 * of_logits + 3 * kAlignment));
    answer = HostBuffer(ops.device(), sizeof(int32_t));
    auto* at = static_cast<std::byte*>(memory.data());
    for (DecodeMemory& of : steps) {
        of.logits_SV = {at, type, {1, vocabulary}}, at += of_logits;
        of.numbers_R = {at, DType::i32, {3}}, at += kAlignment;
    }
    drawn_S = {at, DType::i32, {1}};
}

int32_t Llama::Impl::decode_ahead(WeightUnits& weights, int32_t id, std::span<Selection const> selections,
                                  KvCache& cache, Arena& arena, TokenDraws const& draws) {
    if (!ahead) ahead = std::make_unique<DecodeAhead>(ops, options.vocab_size);
    DecodeAhead& a = *ahead;
    TensorView const rules_SB = arena.allocate("rules", DType::u8, {1, static_cast<int64_t>(sizeof(DrawRule))});
    bool const queued = !a.key.empty() && a.id == id && a.past == cache.tokens() && a.cache_state == cache.state() &&
                        a.key == step_key(weights, a.steps[a.step], 1, cache, selections, arena);
    int32_t const past = take_places({&id, 1}, cache, 1).front();
    a.key.clear();  // whatever happens from here on: that step is taken, or forgotten
    if (!queued) {
        int32_t const numbers[] = {id, past, past};
        ops.upload(a.steps[a.step].numbers_R, numbers);
        queue_step(weights, a.steps[a.step], {&past, 1}, selections, cache, arena);
    }
    cache.set_tokens(past + 1);
    DecodeMemory const& now = a.steps[a.step];
    ops.upload(rules_SB, draws.rules.data());
    ops.sample_tokens({.ids_S = a.drawn_S,
                       .logits_SV = now.logits_SV,
                       .rules_SB = rules_SB,
                       .seen_SW = draws.seen_SW,
                       .allowed = draws.allowed});
    Queue& answers = ops.device().lane("answers");
    answers.wait(ops.device().queue().record());
    answers.copy(a.answer.data(), a.drawn_S.data, sizeof(int32_t));
    int32_t const next = past + 1;
    if (a.pause > 0) {
        --a.pause;
    } else if (next < cache.capacity() && cache.make_room(0, next + 1)) {
        a.step ^= 1;
        DecodeMemory const& step = a.steps[a.step];
        int32_t const places[] = {next, next};
        ops.upload(step.numbers_R.rows(1, 3), places);
        ops.copy(step.numbers_R.rows(0, 1), a.drawn_S);
        a.key = queue_step(weights, step, {&next, 1}, selections, cache, arena);
    }
    answers.synchronize();
    int32_t drawn = *static_cast<int32_t const*>(a.answer.data());
    if (drawn < 0 && draws.rules[0].index >= 0) {
        a.key.clear();  // that step started from no token
        if (a.pause == 0) a.pause = kPause;
        drawn = draw_on_host(now.logits_SV, draws.rules[0], draws.seen_SW, draws.allowed);
    }
    a.id = drawn, a.past = next, a.cache_state = cache.state();
    return drawn;
}

}  // namespace perigee
