#include "data/recall_source.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "data/mock_source.h"
#include "data/packing.h"

namespace perigee {

namespace {

constexpr int64_t kRecallTrainSamples = int64_t{1} << 20;
constexpr int64_t kRecallValidationSamples = 1024;
constexpr int64_t kQuestionTokens = 3;  // marker, key, value

/// The first `count` of 0 ... `of` - 1 in random order.
std::vector<int32_t> draw(Philox const& random, uint64_t& counter, int64_t count, int64_t of) {
    std::vector<int32_t> all(static_cast<size_t>(of));
    std::iota(all.begin(), all.end(), 0);
    for (int64_t i = 0; i < count; ++i) {
        auto const other = i + static_cast<int64_t>(random.below(counter++, static_cast<uint64_t>(of - i)));
        std::swap(all[static_cast<size_t>(i)], all[static_cast<size_t>(other)]);
    }
    all.resize(static_cast<size_t>(count));
    return all;
}

}  // namespace

RecallSource::RecallSource(DataOptions const& options, Split split, uint64_t seed, int64_t vocab_size)
    : options_(options),
      split_(split),
      seed_(seed),
      values_(static_cast<int32_t>(vocab_size / 2)),
      keys_(static_cast<int32_t>(vocab_size) - values_ - 1) {
    MockOptions const& mock = options.mock;
    int64_t const stated = options.sequence_length + 1 - kQuestionTokens * mock.questions;
    topics_ = (stated + mock.topic_tokens - 1) / mock.topic_tokens;
    asked_facts_ = options.sequence_length / 2 / mock.topic_tokens * mock.facts_per_topic;
    if (stated <= options.sequence_length / 2 || asked_facts_ < mock.questions)
        fail(Category::config,
             "data.mock: {} questions ask about as many facts of the first half of data.sequence_length = {}, which "
             "states {}",
             mock.questions, options.sequence_length, asked_facts_);
    if (topics_ * mock.facts_per_topic > keys_)
        fail(Category::config,
             "data.mock: a document states {} facts, but model.vocab_size = {} has {} keys: half of its ids",
             topics_ * mock.facts_per_topic, vocab_size, keys_);
}

int64_t RecallSource::samples_per_epoch() const {
    return split_ == Split::train ? kRecallTrainSamples : kRecallValidationSamples;
}

RecallSource::Document RecallSource::document(int64_t index) const {
    PERIGEE_CHECK(index >= 0, "sample {}", index);
    if (split_ == Split::validation) index %= kRecallValidationSamples;
    MockOptions const& mock = options_.mock;
    Philox const random(seed_, Purpose::mock_data, sample_stream(split_, index));
    uint64_t counter = 0;
    auto const facts = static_cast<uint64_t>(mock.facts_per_topic);
    int64_t const all_facts = topics_ * mock.facts_per_topic;
    std::vector<int32_t> const keys = draw(random, counter, all_facts, keys_);
    std::vector<int32_t> values(keys.size());
    for (int32_t& value : values) value = static_cast<int32_t>(random.below(counter++, static_cast<uint64_t>(values_)));

    Document document;
    std::vector<int32_t> const asked = draw(random, counter, mock.questions, asked_facts_);
    auto const stated = static_cast<size_t>(options_.sequence_length + 1 - kQuestionTokens * mock.questions);
    std::vector<Lookup> found(keys.size());
    auto& tokens = document.tokens;
    for (uint64_t topic = 0; tokens.size() < stated; ++topic) {
        for (int64_t slot = 0; slot < mock.topic_tokens / 2; ++slot) {
            auto const s = static_cast<uint64_t>(slot);
            size_t const fact = topic * facts + (s < facts ? s : random.below(counter++, facts));
            tokens.push_back(values_ + keys[fact]);
            found[fact].places.push_back(static_cast<int64_t>(tokens.size()));
            tokens.push_back(values[fact]);
        }
    }
    tokens.resize(stated);
    for (int32_t const fact : asked) {
        auto const f = static_cast<size_t>(fact);
        tokens.push_back(values_ + keys_);
        found[f].from = static_cast<int64_t>(tokens.size());
        tokens.push_back(values_ + keys[f]);
        tokens.push_back(values[f]);
        document.lookups.push_back(std::move(found[f]));
    }
    return document;
}

void RecallSource::append_sample(int64_t index, Batch& batch) const {
    Document const document = this->document(index);
    bool const all = options_.mock.loss == MockLoss::all && split_ == Split::train;
    std::vector<float> weights(document.tokens.size(), all ? 1.0f : 0.0f);
    for (Lookup const& lookup : document.lookups) weights[static_cast<size_t>(lookup.from + 1)] = 1;
    append_document(document.tokens, weights, batch);
}

std::vector<Lookup> RecallSource::lookups(int64_t index) const { return document(index).lookups; }

std::string RecallSource::summary() const {
    return fmt::format("mock data: far recall, {} questions about {} topics of {} facts, {} samples of {} tokens",
                       options_.mock.questions, topics_, options_.mock.facts_per_topic,
                       fmt::group_digits(samples_per_epoch()), fmt::group_digits(options_.sequence_length));
}

}  // namespace perigee
