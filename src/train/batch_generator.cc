#include "train/batch_generator.h"

#include <algorithm>
#include <ranges>

#include "train/text_model.h"

namespace perigee {

namespace {

bool ends_with(std::vector<int32_t> const& ids, std::vector<int32_t> const& stop) {
    return !stop.empty() && ids.size() >= stop.size() &&
           std::equal(stop.begin(), stop.end(), ids.end() - std::ssize(stop));
}

}  // namespace

char const* to_string(Finish finish) { return finish == Finish::stop ? "stop" : "length"; }

BatchGenerator::Running::Running(GenerationRequest asked, int64_t vocabulary)
    : request(std::move(asked)), sampler(request.sampling, request.seed, vocabulary) {
    sampler.see(request.ids);
}

BatchGenerator::BatchGenerator(Session& session, std::vector<Selection> selections, BatchLimits const& limits)
    : session_(session),
      selections_(std::move(selections)),
      limits_(limits),
      running_(static_cast<size_t>(limits.texts)),
      seen_(session.ops(), limits.texts),
      cache_(make_cache()),
      pages_(cache_.free_pages()) {}

KvCache BatchGenerator::make_cache() const {
    ModelOptions const& model = session_.options().model;
    MeshShape const& mesh = session_.mesh().shape();
    Ops& ops = session_.ops();
    if (mesh.cp > 1) fail(Category::config, "many prompts at once need parallel.context = 1, not {}", mesh.cp);
    if (model.key_conv > 0)
        fail(Category::config, "many prompts at once need attention.key_conv: none, not {}", model.key_conv);
    if (!KvCache::serves(ops, model))
        fail(Category::config, "many prompts at once: the GPU has no kernels for heads of {}", model.head_size());
    CacheRoom room{.tokens = limits_.text_tokens, .block_size = block_size_of(selections_), .texts = limits_.texts};
    int64_t const page = page_size_of(room.block_size);
    int64_t const longest = (limits_.text_tokens + mesh.tp - 1 + page - 1) / page;
    if (limits_.cache_bytes > 0)
        room.pages =
            std::min(KvCache::pages_within(limits_.cache_bytes, ops, model, mesh, room), limits_.texts * longest);
    return {ops, model, mesh, room};
}

int64_t BatchGenerator::most_tokens() const {
    int64_t const padding = session_.mesh().shape().tp - 1;
    return std::min(limits_.text_tokens, pages_ * cache_.page_size() - padding);
}

int64_t BatchGenerator::longest(GenerationRequest const& request) const {
    return std::min(std::ssize(request.ids) + request.sampling.max_tokens, limits_.text_tokens);
}

int64_t BatchGenerator::running() const {
    return std::ranges::count_if(running_, [](auto const& text) { return text.has_value(); });
}

std::optional<int64_t> BatchGenerator::begin(GenerationRequest request) {
    PERIGEE_CHECK(!request.ids.empty() && std::ssize(request.ids) < limits_.text_tokens,
                  "a prompt of {} tokens, with {}", request.ids.size(), limits_.text_tokens);
    auto const free = std::ranges::find_if(running_, [](auto const& text) { return !text; });
    auto const text = static_cast<int64_t>(free - running_.begin());
    if (free == running_.end() || !cache_.make_room(text, longest(request))) return std::nullopt;
    free->emplace(std::move(request), limits_.vocabulary);
    seen_.forget(text);
    return text;
}

void BatchGenerator::drop(int64_t text) {
    cache_.clear(text);
    running_[static_cast<size_t>(text)].reset();
}

std::vector<GeneratedToken> BatchGenerator::step(std::function<void()> const& before_pass) {
    std::vector<bool> ready;
    for (auto const& text : running_) ready.push_back(text && !text->reads());
    std::vector<GeneratedToken> tokens;
    read_prompts(before_pass, tokens);
    if (std::ranges::count(ready, true) > 0) {
        before_pass();
        decode(ready, tokens);
    }
    return tokens;
}

void BatchGenerator::read_prompts(std::function<void()> const& before_pass, std::vector<GeneratedToken>& tokens) {
    int64_t left = limits_.chunk_tokens;
    for (size_t text = 0; text < running_.size() && left > 0; ++text) {
        if (!running_[text] || !running_[text]->reads()) continue;
        Running& running = *running_[text];
        auto const number = static_cast<int64_t>(text);
        int64_t const count = std::min(left, std::ssize(running.request.ids) - running.read);
        auto const chunk =
            std::span(running.request.ids).subspan(static_cast<size_t>(running.read), static_cast<size_t>(count));
        auto const logits = read_prompt(session_, selections_, cache_, number, chunk, before_pass);
        running.read += count, left -= count;
        if (!running.reads()) tokens.push_back(take(number, agreed({running.sampler.draw(logits)})[0], logits));
    }
}

/// One token of every text that is ready.
void BatchGenerator::decode(std::vector<bool> const& ready, std::vector<GeneratedToken>& tokens) {
    size_t texts = 1;  // few numbers of texts are few graphs
    for (size_t text = 0; text < running_.size(); ++text)
        while (ready[text] && texts <= text) texts *= 2;
    texts = std::min(texts, running_.size());
    std::vector<int32_t> ids(texts, -1);
    for (size_t text = 0; text < texts; ++text)
        if (ready[text]) ids[text] = running_[text]->ids.back();
    bool const logprobs = std::ranges::any_of(std::views::iota(size_t{0}, texts), [&](size_t text) {
        return ready[text] && running_[text]->request.logprobs;
    });
    if (logprobs || session_.mesh().shape().tp > 1)
        draw_on_host(ids, ready, tokens);
    else
        draw_on_device(ids, ready, tokens);
}

void BatchGenerator::draw_on_host(std::vector<int32_t> ids, std::vector<bool> const& ready,
                                  std::vector<GeneratedToken>& tokens) {
    auto const logits = session_.model().decode(session_.model_weights(), ids, selections_, cache_, session_.arena());
    session_.arena().settle();
    size_t const vocabulary = logits.size() / ids.size();
    auto const of = [&](size_t text) { return std::span(logits).subspan(text * vocabulary, vocabulary); };
    for (size_t text = 0; text < ids.size(); ++text) {
        if (!ready[text]) continue;
        ids[text] = running_[text]->sampler.draw(of(text));
        seen_.forget(static_cast<int64_t>(text));
    }
    ids = agreed(std::move(ids));
    for (size_t text = 0; text < ids.size(); ++text)
        if (ready[text]) tokens.push_back(take(static_cast<int64_t>(text), ids[text], of(text)));
}

void BatchGenerator::draw_on_device(std::vector<int32_t> ids, std::vector<bool> const& ready,
                                    std::vector<GeneratedToken>& tokens) {
    std::vector<DrawRule> rules(ids.size(), {.index = -1});
    TokenDraws draws{.rules = rules, .allowed = limits_.vocabulary, .ahead = !session_.ops().device().is_host()};
    for (size_t text = 0; text < ids.size(); ++text) {
        if (!ready[text]) continue;
        rules[text] = running_[text]->sampler.next_rule();
        if (running_[text]->sampler.penalises())
            draws.seen_SW = seen_.with(static_cast<int64_t>(text), running_[text]->sampler).rows(0, std::ssize(ids));
    }
    ids = session_.model().decode(session_.model_weights(), ids, selections_, cache_, session_.arena(), draws);
    session_.arena().settle();
    ids = agreed(std::move(ids));
    for (size_t text = 0; text < ids.size(); ++text) {
        if (!ready[text]) continue;
        running_[text]->sampler.take(ids[text]);
        tokens.push_back(take(static_cast<int64_t>(text), ids[text], {}));
    }
}

/// What rank 0 drew: ranks that take other tokens would end texts at other steps.
std::vector<int32_t> BatchGenerator::agreed(std::vector<int32_t> drawn) const {
    session_.mesh().world().broadcast(TensorView(drawn.data(), {std::ssize(drawn)}), 0);
    return drawn;
}

/// The text goes on with this token, which may be the last.
GeneratedToken BatchGenerator::take(int64_t text, int32_t id, std::span<float const> logits) {
    Running& running = *running_[static_cast<size_t>(text)];
    GenerationRequest const& request = running.request;
    GeneratedToken token{.text = text, .id = id};
    running.ids.push_back(id);
    if (request.logprobs) token.logprob = log_probability(logits, id);
    if (request.logprobs && request.top > 0) token.top = likeliest(logits, limits_.vocabulary, request.top);
    if (ends_with(running.ids, request.stop))
        token.finish = Finish::stop;
    else if (std::ssize(request.ids) + std::ssize(running.ids) >= longest(request))
        token.finish = Finish::length;
    if (token.finish) drop(text);
    return token;
}

namespace {

/// That these requests need, and no more.
BatchLimits fitted(BatchLimits limits, std::span<GenerationRequest const> requests) {
    int64_t longest = 1;
    for (GenerationRequest const& request : requests)
        longest = std::max(longest, std::ssize(request.ids) + request.sampling.max_tokens);
    limits.text_tokens = std::min(limits.text_tokens, longest);
    limits.texts = std::min(limits.texts, std::ssize(requests));
    return limits;
}

void add(GeneratedToken const& token, GenerationRequest const& request, GenerationAnswer& answer) {
    answer.ids.push_back(token.id);
    if (request.logprobs) answer.logprobs.push_back(token.logprob);
    if (!token.finish) return;
    answer.finish = *token.finish;
    if (answer.finish == Finish::stop) answer.ids.resize(answer.ids.size() - request.stop.size());
    if (request.logprobs) answer.logprobs.resize(answer.ids.size());
}

}  // namespace

std::vector<GenerationAnswer> generate_batch(Session& session, std::vector<Selection> const& selections,
                                             BatchLimits const& limits, std::span<GenerationRequest const> requests,
                                             std::function<void()> const& before_pass) {
    std::vector<GenerationAnswer> answers(requests.size());
    if (requests.empty()) return answers;
    BatchGenerator generator(session, selections, fitted(limits, requests));
    std::vector<size_t> request_of(static_cast<size_t>(limits.texts));  // a text
    size_t next = 0;
    auto const has_answer = [&](size_t i) { return std::ssize(requests[i].ids) < limits.text_tokens; };
    for (size_t i = 0; i < requests.size(); ++i)
        if (has_answer(i) && generator.longest(requests[i]) > generator.most_tokens())
            fail(Category::config, "generate.cache_gib: no room for prompt {} of {} tokens and its answer", i + 1,
                 requests[i].ids.size());
    while (next < requests.size() || !generator.idle()) {
        for (; next < requests.size(); ++next) {
            if (!has_answer(next)) continue;
            auto const text = generator.begin(requests[next]);
            if (!text) break;
            request_of[static_cast<size_t>(*text)] = next;
        }
        for (GeneratedToken const& token : generator.step(before_pass)) {
            size_t const request = request_of[static_cast<size_t>(token.text)];
            add(token, requests[request], answers[request]);
        }
    }
    return answers;
}

}  // namespace perigee
