#include "train/evaluate.h"

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "data/chat_record.h"
#include "eval/results.h"

namespace perigee {

namespace {

/// How many bytes of text the targets stand for, times their weights.
class TextSize {
  public:
    explicit TextSize(std::vector<int32_t> const& token_bytes) : token_bytes_(token_bytes) {}
    void add(Batch const& batch) {
        for (size_t t = 0; t < batch.targets_T.size(); ++t) {
            auto const id = static_cast<size_t>(batch.targets_T[t]);
            if (batch.weights_T[t] == 0) continue;
            if (id < token_bytes_.size())
                bytes_ += static_cast<double>(batch.weights_T[t]) * token_bytes_[id];
            else
                unknown_ = true;
        }
    }
    /// Of all ranks; 0 where a token is none of the tokenizer's, so that these are tokens of another one. Collective.
    double bytes(HostComm& dp) const {
        double const sum = dp.sum(bytes_);
        return dp.any(unknown_) ? 0 : sum;
    }

  private:
    std::vector<int32_t> const& token_bytes_;
    double bytes_ = 0;
    bool unknown_ = false;
};

/// Of one layer.
struct ReachCount {
    int64_t reached = 0;  ///< tokens
    int64_t chosen = 0;   ///< needed blocks, counted once per query head
    int64_t needed = 0;
    GroupBlocks blocks = {};
};

/// From places in a sample to places in a batch where it begins at token `begin`.
void append_lookups(std::vector<Lookup> sample, int64_t begin, std::vector<Lookup>& batch) {
    for (Lookup& lookup : sample) {
        lookup.from += begin;
        for (int64_t& place : lookup.places) place += begin;
        batch.push_back(std::move(lookup));
    }
}

void count_reach(BlockChoices const& choices, Batch const& batch, std::vector<Lookup> const& lookups,
                 std::vector<ReachCount>& counts) {
    auto const reached = choices.reached(batch.weights_T);
    for (size_t layer = 0; layer < counts.size(); ++layer) {
        counts[layer].reached += std::ranges::count(reached[layer], 1);
        GroupBlocks const blocks = choices.group_blocks(static_cast<int64_t>(layer));
        counts[layer].blocks.of_heads += blocks.of_heads;
        counts[layer].blocks.of_groups += blocks.of_groups;
        for (Lookup const& lookup : lookups) {
            auto const share = choices.attended(static_cast<int64_t>(layer), lookup.from, lookup.places);
            counts[layer].chosen += share.chosen;
            counts[layer].needed += share.needed;
        }
    }
}

}  // namespace

std::optional<EvalReport> evaluate(Session& session, DataSource const& validation, int64_t step,
                                   std::span<Selection const> selections, std::function<bool()> const& goes_on) {
    RunOptions const& options = session.options();
    Mesh const& mesh = session.mesh();
    int64_t const samples = std::min(options.eval.samples, validation.samples_per_epoch());
    int64_t const micro = options.train.micro_batch_size;
    LossSums sums;
    double weight = 0;
    TextSize text(session.token_bytes());
    // Weights may be collected as a pass goes on: every rank takes as many.
    for (int64_t round = 0; round < samples; round += mesh.shape().dp * micro) {
        if (round > 0 && !goes_on()) return std::nullopt;
        int64_t const first = round + mesh.dp_rank() * micro;
        if (first >= samples) {
            session.model_weights().pass_without_tokens();
            continue;
        }
        Batch const batch = make_batch(validation, first, std::min(micro, samples - first));
        LossSums const more = session.model().loss(session.model_weights(), batch, selections, session.arena());
        sums = {.nll = sums.nll + more.nll, .correct = sums.correct + more.correct};
        weight = std::accumulate(batch.weights_T.begin(), batch.weights_T.end(), weight);
        text.add(batch);
    }
    sums = {.nll = mesh.dp_cp().host().sum(sums.nll), .correct = mesh.dp_cp().host().sum(sums.correct)};
    weight = mesh.dp().host().sum(weight);  // cp ranks hold the same batches and share their tokens
    if (!(weight > 0)) fail(Category::data, "evaluation at step {}: no validation token carries loss", step);
    EvalReport report{
        .step = step, .loss = sums.nll / weight, .accuracy = sums.correct / weight, .loss_weight = weight};
    if (double const bytes = text.bytes(mesh.dp().host()); bytes > 0)
        report.bits_per_byte = bits_per_byte(sums.nll, bytes);
    return report;
}

void warn_of_other_template(DataOptions const& data, RunState const& state, FileSystem& files) {
    auto const trained = state.info.find(RunState::kChatTemplate);
    if (data.mock_data || trained == state.info.end()) return;
    for (DatasetOptions const& dataset : data.validation.empty() ? data.train : data.validation) {
        auto const record = read_chat_record(files, dataset.path);
        if (record && record->text != trained->second)
            log::warn(
                "the model was trained with another chat template than the one that rendered {}: its loss may suffer",
                dataset.path);
    }
}

void check_loss(Session& session, DataSource const& validation) {
    Mesh const& mesh = session.mesh();
    int64_t const samples = std::min(session.options().eval.samples, validation.samples_per_epoch());
    bool found = false;
    for (int64_t i = mesh.dp_rank(); i < samples && !found; i += mesh.shape().dp)
        found = std::ranges::any_of(make_batch(validation, i, 1).weights_T, [](float w) { return w > 0; });
    if (mesh.dp().host().sum(int64_t{found}) == 0)
        fail(Category::data, "no token of the first {} validation samples (eval.samples) carries loss", samples);
}

std::vector<LayerReach> measure_reach(Session& session, DataSource const& train, int64_t first,
                                      std::span<Selection const> selections) {
    RunOptions const& options = session.options();
    Mesh const& mesh = session.mesh();
    int64_t const micro = options.train.micro_batch_size, length = options.data.sequence_length;
    int64_t const end = first + options.eval.samples;
    std::vector<ReachCount> counts(selections.size());
    for (int64_t round = first; round < end; round += mesh.shape().dp * micro) {
        int64_t const at = round + mesh.dp_rank() * micro;
        if (at >= end) {
            session.model_weights().pass_without_tokens();
            continue;
        }
        int64_t const samples = std::min(micro, end - at);
        Batch const batch = make_batch(train, at, samples);
        std::vector<Lookup> lookups;
        for (int64_t i = 0; i < samples; ++i) append_lookups(train.lookups(at + i), i * length, lookups);
        BlockChoices const choices =
            session.model().choices(session.model_weights(), batch, selections, session.arena());
        count_reach(choices, batch, lookups, counts);
    }
    std::vector<LayerReach> layers;
    for (size_t i = 0; i < selections.size(); ++i) {
        auto const sum = [&](int64_t count) { return static_cast<double>(mesh.dp().host().sum(count)); };
        double const reached = sum(counts[i].reached), chosen = sum(counts[i].chosen), needed = sum(counts[i].needed);
        LayerReach& layer = layers.emplace_back();
        layer.reach = reached / static_cast<double>(options.eval.samples * length);
        if (!is_full(selections[i]) && needed > 0) layer.gate_recall = chosen / needed;
        double const of_heads = sum(counts[i].blocks.of_heads), of_groups = sum(counts[i].blocks.of_groups);
        auto const group = static_cast<double>(options.model.num_attention_heads / options.model.kv_heads());
        if (of_heads > 0) layer.group_blocks = group * of_groups / of_heads;
    }
    return layers;
}

}  // namespace perigee
