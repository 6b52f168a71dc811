#include "data/mock_source.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace perigee {

namespace {

constexpr int64_t kSmallestVocabulary = 8;
constexpr uint64_t kSuccessors = 4;
constexpr uint64_t kShortestPhrase = 4, kPhraseLengths = 29;
constexpr int kShortestDocumentBits = 4;
constexpr int64_t kMockTrainSamples = int64_t{1} << 20;
constexpr int64_t kMockValidationSamples = 64;

// The grammar belongs to both splits.
constexpr uint64_t kGrammarStream = ~uint64_t{0};

}  // namespace

uint64_t sample_stream(Split split, int64_t index) {
    return (split == Split::validation ? uint64_t{1} << 62 : 0) | static_cast<uint64_t>(index);
}

MockSource::MockSource(DataOptions const& options, Split split, uint64_t seed, int64_t vocab_size)
    : options_(options),
      split_(split),
      seed_(seed),
      vocab_size_(vocab_size),
      grammar_(seed, Purpose::mock_data, kGrammarStream) {
    if (vocab_size < kSmallestVocabulary) {
        fail(Category::config, "mock_data needs a vocabulary of at least {} tokens, not {}", kSmallestVocabulary,
             vocab_size);
    }
}

int64_t MockSource::samples_per_epoch() const {
    return split_ == Split::train ? kMockTrainSamples : kMockValidationSamples;
}

void MockSource::append_document(Philox const& random, uint64_t& counter, Stretch& stretch) const {
    auto& tokens = stretch.tokens;
    auto const words = static_cast<uint64_t>(vocab_size_ - 1);
    auto const longest_bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(options_.sequence_length)));
    auto const choices = static_cast<uint64_t>(std::max(1, longest_bits - kShortestDocumentBits));
    uint64_t const shortest = uint64_t{1}
                              << (kShortestDocumentBits + static_cast<int>(random.below(counter++, choices)));
    uint64_t const length = shortest + random.below(counter++, shortest);
    uint64_t const phrase = kShortestPhrase + random.below(counter++, kPhraseLengths);

    size_t const begin = tokens.size();
    tokens.push_back(static_cast<int32_t>(random.below(counter++, words)));
    for (uint64_t i = 1; i + 1 < length; ++i) {
        if (i >= phrase) {
            tokens.push_back(tokens[begin + i - phrase]);
            continue;
        }
        uint64_t const successor = random.below(counter++, kSuccessors);
        uint64_t const rule = static_cast<uint64_t>(tokens.back()) * kSuccessors + successor;
        tokens.push_back(static_cast<int32_t>(grammar_.below(rule, words)));
    }
    tokens.push_back(static_cast<int32_t>(words));
}

void MockSource::append_sample(int64_t index, Batch& batch) const {
    PERIGEE_CHECK(index >= 0, "sample {}", index);
    if (split_ == Split::validation) index %= kMockValidationSamples;
    Philox const random(seed_, Purpose::mock_data, sample_stream(split_, index));
    uint64_t counter = 0;
    auto const size = static_cast<size_t>(options_.sequence_length + 1);
    Stretch stretch;
    while (stretch.tokens.size() < size) {
        if (!stretch.tokens.empty()) stretch.document_begins.push_back(static_cast<int64_t>(stretch.tokens.size()));
        append_document(random, counter, stretch);
    }
    stretch.tokens.resize(size);
    stretch.weights.assign(size, 1.0f);
    append_stretch(stretch, options_.document_mask, batch);
}

std::string MockSource::summary() const {
    return fmt::format("mock data: made-up documents of {} token ids, {} samples of {} tokens", vocab_size_,
                       fmt::group_digits(samples_per_epoch()), fmt::group_digits(options_.sequence_length));
}

}  // namespace perigee
