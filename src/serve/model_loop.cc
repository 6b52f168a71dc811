#include "serve/model_loop.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/log.h"

namespace perigee::serve {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kIdle{100};  // between signs of life
constexpr std::chrono::seconds kPatience{20};    // for texts that run when the server is told to stop

/// Prompts one after the other, every token of which is scored for the one after it.
Batch batch_of(std::span<std::vector<int32_t> const> prompts) {
    Batch batch;
    batch.cu_seqlens = {0};
    for (auto const& ids : prompts) {
        batch.ids_T.insert(batch.ids_T.end(), ids.begin(), ids.end());
        batch.targets_T.insert(batch.targets_T.end(), ids.begin() + 1, ids.end());
        batch.targets_T.push_back(0);  // what follows is not known
        for (int32_t t = 0; t < std::ssize(ids); ++t) batch.positions_T.push_back(t);
        batch.cu_seqlens.push_back(static_cast<int32_t>(batch.ids_T.size()));
    }
    batch.weights_T.assign(batch.ids_T.size(), 1.0f);
    return batch;
}

/// The next part of a pack's scores, of a prompt with so many tokens.
PromptScores part_of(TokenScores const& all, size_t first, size_t tokens, int64_t top) {
    auto const width = static_cast<size_t>(top);
    PromptScores scores;
    for (size_t t = first; t < first + tokens; ++t) {
        if (t + 1 < first + tokens) scores.logprobs.push_back(-all.nll[t]);
        auto& likeliest = scores.top.emplace_back();
        for (size_t i = t * width; i < (t + 1) * width; ++i) likeliest.push_back({all.top_ids[i], all.top_logprobs[i]});
    }
    return scores;
}

/// The only token of an answer that scores are enough for.
GeneratedToken greedy_token(PromptScores const& scores, GenerationRequest const& request) {
    TokenLogprob const best = scores.top.back().front();
    bool const stops = request.stop == std::vector{best.id};
    return {.id = best.id,
            .logprob = best.logprob,
            .top = scores.top.back(),
            .finish = stops ? Finish::stop : Finish::length};
}

}  // namespace

ModelLoop::ModelLoop(Session& session, std::vector<Selection> selections, BatchLimits const& limits,
                     int64_t pack_tokens)
    : session_(session),
      selections_(selections),
      limits_(limits),
      pack_tokens_(pack_tokens),
      generator_(session, std::move(selections), limits) {
    count();
}

void ModelLoop::count() {
    free_pages_ = generator_.cache().free_pages();  // first: where nothing runs, all pages are free
    running_ = generator_.running();
}

std::string ModelLoop::packed(Round const& round) {
    nlohmann::json begun = nlohmann::json::array();
    for (GenerationRequest const& request : round.begun) {
        SamplingOptions const& s = request.sampling;
        begun.push_back({request.ids, request.seed, request.stop, request.logprobs, request.top, s.max_tokens,
                         s.temperature, s.top_k, s.top_p, s.min_p, s.repetition_penalty});
    }
    auto const bytes = nlohmann::json::to_cbor({round.last, round.dropped, begun, round.scored, round.top});
    return {bytes.begin(), bytes.end()};
}

ModelLoop::Round ModelLoop::unpacked(std::string const& text) {
    nlohmann::json const all = nlohmann::json::from_cbor(text);
    Round round{.last = all[0], .dropped = all[1], .begun = {}, .scored = all[3], .top = all[4]};
    for (nlohmann::json const& r : all[2]) {
        GenerationRequest request{
            .ids = r[0], .sampling = {}, .seed = r[1], .stop = r[2], .logprobs = r[3], .top = r[4]};
        SamplingOptions& s = request.sampling;
        s.max_tokens = r[5], s.temperature = r[6], s.top_k = r[7];
        s.top_p = r[8], s.min_p = r[9], s.repetition_penalty = r[10];
        round.begun.push_back(std::move(request));
    }
    return round;
}

void ModelLoop::plan_end(WaitingTexts& queue, Hooks const& hooks, Round& round) {
    if (!told_to_stop_ && hooks.must_stop()) {
        told_to_stop_ = Clock::now();
        queue.close("the server stops");
    }
    if (!told_to_stop_ || (!texts_.empty() && Clock::now() < *told_to_stop_ + kPatience)) return;
    for (auto const& [text, entry] : texts_) entry.exchange->post({entry.task, Failed{"the server stops"}});
    round.last = true;
}

/// On rank 0. Begins the texts that it names.
ModelLoop::Round ModelLoop::plan(WaitingTexts& queue, Hooks const& hooks) {
    Round round;
    plan_end(queue, hooks, round);
    for (auto text = texts_.begin(); text != texts_.end();) {
        if (!text->second.abandoned()) {
            ++text;
            continue;
        }
        generator_.drop(text->first);
        round.dropped.push_back(text->first);
        text = texts_.erase(text);
    }
    int64_t tokens = 0;
    while (auto const entry = queue.front(texts_.empty() && to_score_.empty() && !round.last ? kIdle : kIdle.zero())) {
        Task const& task = entry->what();
        auto const length = std::ssize(task.generation.ids);
        if (task.scores && !entry->scored) {
            if (!to_score_.empty() && tokens + length > pack_tokens_) break;
            tokens += length;
            to_score_.push_back(*entry);
            round.scored.push_back(task.generation.ids);
            round.top = std::max({round.top, task.generation.top, int64_t{1}});
        } else {
            auto const text = generator_.begin(task.generation);
            if (!text) break;
            texts_.emplace(*text, *entry);
            round.begun.push_back(task.generation);
        }
        entry->exchange->start();
        queue.remove(*entry);
    }
    return round;
}

void ModelLoop::score(Round const& round, Hooks const& hooks, WaitingTexts* queue) {
    hooks.alive();
    TokenScores const all = session_.model().scores(session_.model_weights(), batch_of(round.scored), selections_,
                                                    limits_.vocabulary, session_.arena(), round.top);
    session_.arena().settle();
    size_t first = 0;
    for (size_t i = 0; i < to_score_.size(); ++i) {  // on rank 0
        WaitingTexts::Entry& entry = to_score_[i];
        GenerationRequest const& request = entry.what().generation;
        PromptScores scores = part_of(all, first, request.ids.size(), round.top);
        first += request.ids.size();
        bool const answers = !entry.what().generates && request.sampling.max_tokens > 0;
        GeneratedToken token = answers ? greedy_token(scores, request) : GeneratedToken{};
        entry.exchange->post({entry.task, std::move(scores)});
        if (answers) entry.exchange->post({entry.task, std::move(token)});
        entry.scored = true;
        if (entry.what().generates) queue->put_back(entry);
    }
    to_score_.clear();
}

void ModelLoop::post(GeneratedToken token) {
    auto const text = texts_.find(token.text);
    if (text == texts_.end()) return;  // on other ranks than 0
    WaitingTexts::Entry const entry = text->second;
    if (token.finish) texts_.erase(text);
    entry.exchange->post({entry.task, std::move(token)});
}

void ModelLoop::run(WaitingTexts* queue, Hooks const& hooks) {
    HostComm& world = session_.mesh().world();
    bool const alone = world.size() == 1, plans = world.rank() == 0;
    for (;;) {
        hooks.alive();
        Round round;
        if (plans) round = plan(*queue, hooks);
        if (!alone) {
            std::string const text = world.broadcast_text(plans ? packed(round) : "", 0);
            if (!plans) {
                round = unpacked(text);
                for (int64_t const dropped : round.dropped) generator_.drop(dropped);
                for (GenerationRequest& request : round.begun) generator_.begin(std::move(request));
            }
        }
        if (round.last) return;
        count();
        if (!round.scored.empty()) score(round, hooks, queue);
        std::vector<GeneratedToken> tokens = generator_.step(hooks.alive);
        count();  // before a client can ask about the tokens it was sent
        for (GeneratedToken& token : tokens) post(std::move(token));
    }
}

}  // namespace perigee::serve
