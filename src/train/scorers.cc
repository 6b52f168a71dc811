#include "train/scorers.h"

#include <algorithm>

#include "data/packing.h"
#include "eval/sampling.h"
#include "train/text_model.h"

namespace perigee {

namespace {

/// Items that share a forward.
struct Pack {
    size_t begin = 0, end = 0;
};

std::vector<Pack> packs_of(std::span<Item const> items, int64_t most_tokens) {
    std::vector<Pack> packs;
    int64_t room = 0;
    for (size_t i = 0; i < items.size(); ++i) {
        if (packs.empty() || items[i].length > room) {
            packs.push_back({i, i});
            room = most_tokens;
        }
        packs.back().end = i + 1;
        room -= items[i].length;
    }
    return packs;
}

/// Loss on answers alone.
void append_item(Item const& item, Batch& batch) {
    std::vector<int32_t> tokens = item.prompt;
    tokens.insert(tokens.end(), item.answer.begin(), item.answer.end());
    std::vector<float> weights(tokens.size(), 0.0f);
    std::fill(weights.end() - std::ssize(item.answer), weights.end(), 1.0f);
    append_document(tokens, weights, batch);
}

/// In place, added up over the ranks that share items.
template <class T>
void join(std::vector<T>& values, Mesh const& mesh) {
    mesh.dp().host().all_reduce(TensorView(values.data(), {std::ssize(values)}));
}

}  // namespace

std::vector<ItemScore> ForcedDecoding::score(std::span<Item const> items) {
    Session& session = model_.session;
    Mesh const& mesh = session.mesh();
    RunOptions const& options = session.options();
    std::vector<double> nll(items.size());
    std::vector<int64_t> correct(items.size());
    auto const packs = packs_of(items, options.train.micro_batch_size * options.data.sequence_length);
    for (auto p = static_cast<size_t>(mesh.dp_rank()); p < packs.size(); p += static_cast<size_t>(mesh.shape().dp)) {
        Batch batch;
        for (size_t i = packs[p].begin; i < packs[p].end; ++i) append_item(items[i], batch);
        model_.before_forward();
        TokenScores const scores =
            session.model().scores(session.model_weights(), batch, model_.selections, model_.allowed, session.arena());
        session.arena().settle();
        size_t place = 0;
        for (size_t i = packs[p].begin; i < packs[p].end; ++i)
            for (int32_t const token : items[i].answer) {
                nll[i] += scores.nll[place];
                correct[i] += scores.best[place++] == token;
            }
    }
    join(nll, mesh);
    join(correct, mesh);
    std::vector<ItemScore> result;
    for (size_t i = 0; i < items.size(); ++i) result.push_back({.correct = correct[i], .nll = nll[i]});
    return result;
}

int64_t GreedyDecoding::right_tokens(Item const& item) {
    SamplingOptions const greedy{.temperature = 0};
    Philox const unused(0, Purpose::generate);
    TextModel model(model_.session, model_.selections);
    std::vector<int32_t> added = item.prompt;
    int64_t right = 0;
    for (int32_t const token : item.answer) {
        model_.before_forward();
        if (sample_token(model.append(added), model_.allowed, greedy, unused, 0) != token) break;
        added = {token};
        ++right;
    }
    return right;
}

std::vector<ItemScore> GreedyDecoding::score(std::span<Item const> items) {
    Mesh const& mesh = model_.session.mesh();
    std::vector<int64_t> correct(items.size());
    for (auto i = static_cast<size_t>(mesh.dp_rank()); i < items.size(); i += static_cast<size_t>(mesh.shape().dp))
        correct[i] = right_tokens(items[i]);
    join(correct, mesh);
    std::vector<ItemScore> result;
    for (int64_t const count : correct) result.push_back({.correct = count});
    return result;
}

}  // namespace perigee
