#include "train/batch_generator.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "train/text_model.h"

namespace perigee {

namespace {

double log_probability(std::span<float const> logits, int64_t allowed, int32_t id) {
    logits = logits.first(static_cast<size_t>(allowed));
    double const most = *std::ranges::max_element(logits);
    double sum = 0;
    for (float const x : logits) sum += std::exp(static_cast<double>(x) - most);
    return static_cast<double>(logits[static_cast<size_t>(id)]) - most - std::log(sum);
}

class Batching {
  public:
    Batching(Session& session, std::vector<Selection> const& selections, BatchLimits const& limits,
             std::span<GenerationRequest const> requests, std::function<void()> const& before_pass)
        : session_(session),
          selections_(selections),
          limits_(limits),
          requests_(requests),
          before_pass_(before_pass),
          answers_(requests.size()),
          running_(static_cast<size_t>(std::min(limits.texts, std::ssize(requests)))),
          cache_(make_cache()) {}

    std::vector<GenerationAnswer> run() {
        do {
            admit();
            if (any_running()) step();
        } while (any_running() || next_ < requests_.size());
        return std::move(answers_);
    }

  private:
    struct Running {
        size_t request;
        int32_t next;  ///< the latest token, not yet in the cache
    };

    bool any_running() const {
        return std::ranges::any_of(running_, [](auto const& text) { return text.has_value(); });
    }

    /// Tokens of prompt and answer at most.
    int64_t longest(GenerationRequest const& request) const {
        return std::min(std::ssize(request.ids) + request.sampling.max_tokens, limits_.text_tokens);
    }

    KvCache make_cache() const {
        ModelOptions const& model = session_.options().model;
        MeshShape const& mesh = session_.mesh().shape();
        Ops& ops = session_.ops();
        if (mesh.cp > 1) fail(Category::config, "many prompts at once need parallel.context = 1, not {}", mesh.cp);
        if (!KvCache::serves(ops, model))
            fail(Category::config, "many prompts at once: the GPU has no kernels for heads of {}", model.head_size());
        CacheRoom room{.tokens = 1, .block_size = block_size_of(selections_), .texts = std::ssize(running_)};
        for (GenerationRequest const& request : requests_) room.tokens = std::max(room.tokens, longest(request));
        if (limits_.cache_bytes > 0)
            room.pages = std::max<int64_t>(
                1, limits_.cache_bytes / KvCache::page_bytes(ops, model, mesh, page_size_of(room.block_size)));
        return {ops, model, mesh, room};
    }

    /// Prompts begin while there are texts and pages for them to their end. Those without room for an answer get none.
    void admit() {
        for (size_t text = 0; text < running_.size() && next_ < requests_.size(); ++text) {
            if (running_[text]) continue;
            while (next_ < requests_.size() && std::ssize(requests_[next_].ids) >= limits_.text_tokens) ++next_;
            if (next_ == requests_.size()) return;
            GenerationRequest const& request = requests_[next_];
            auto const number = static_cast<int64_t>(text);
            if (!cache_.make_room(number, longest(request))) {
                if (!any_running())
                    fail(Category::config, "generate.cache_gib: no room for prompt {} of {} tokens and its answer",
                         next_, request.ids.size());
                return;
            }
            running_[text] = Running{.request = next_++, .next = 0};
            take(text, read_prompt(session_, selections_, cache_, number, request.ids, before_pass_));
        }
    }

    /// One token of every text.
    void step() {
        size_t texts = 1;  // few numbers of texts are few graphs
        for (size_t text = 0; text < running_.size(); ++text)
            while (running_[text] && texts <= text) texts *= 2;
        texts = std::min(texts, running_.size());
        std::vector<int32_t> ids(texts, -1);
        for (size_t text = 0; text < texts; ++text)
            if (running_[text]) ids[text] = running_[text]->next;
        before_pass_();
        auto const logits = session_.model().decode(session_.weights(), ids, selections_, cache_, session_.arena());
        session_.arena().settle();
        size_t const vocabulary = logits.size() / texts;
        for (size_t text = 0; text < texts; ++text)
            if (running_[text]) take(text, std::span(logits).subspan(text * vocabulary, vocabulary));
    }

    /// The text's next token from its logits; it may be the last.
    void take(size_t text, std::span<float const> logits) {
        Running& running = *running_[text];
        GenerationRequest const& request = requests_[running.request];
        GenerationAnswer& answer = answers_[running.request];
        Philox const random(static_cast<uint64_t>(request.seed), Purpose::generate);
        running.next = sample_token(logits, limits_.vocabulary, request.sampling, random, std::ssize(answer.ids));
        answer.ids.push_back(running.next);
        answer.logprobs.push_back(log_probability(logits, limits_.vocabulary, running.next));
        if (ends(answer)) {
            answer.ids.resize(answer.ids.size() - limits_.stop.size());
            answer.logprobs.resize(answer.ids.size());
            answer.finish = Finish::stop;
        } else if (std::ssize(request.ids) + std::ssize(answer.ids) < longest(request)) {
            return;
        }
        cache_.clear(static_cast<int64_t>(text));
        running_[text].reset();
    }

    bool ends(GenerationAnswer const& answer) const {
        auto const& stop = limits_.stop;
        return !stop.empty() && answer.ids.size() >= stop.size() &&
               std::equal(stop.begin(), stop.end(), answer.ids.end() - std::ssize(stop));
    }

    Session& session_;
    std::vector<Selection> const& selections_;
    BatchLimits const& limits_;
    std::span<GenerationRequest const> requests_;
    std::function<void()> const& before_pass_;
    std::vector<GenerationAnswer> answers_;
    std::vector<std::optional<Running>> running_;  ///< by their number in the cache
    KvCache cache_;
    size_t next_ = 0;  ///< request that has not begun
};

}  // namespace

char const* to_string(Finish finish) { return finish == Finish::stop ? "stop" : "length"; }

std::vector<GenerationAnswer> generate_batch(Session& session, std::vector<Selection> const& selections,
                                             BatchLimits const& limits, std::span<GenerationRequest const> requests,
                                             std::function<void()> const& before_pass) {
    if (requests.empty()) return {};
    return Batching(session, selections, limits, requests, before_pass).run();
}

}  // namespace perigee
