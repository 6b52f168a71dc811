// A made-up task of looking things up far away. A document is a row of topics, each stating a few facts (a key token
// and its value token, side by side) again and again in random order; at its end, questions (a marker and a key) are
// answered with the key's value. Questions ask about the first half only. No key stands in two topics, so an answer can
// only be looked up, and a topic's tokens have something in common, as those of a text about something do.
#pragma once

#include "base/philox.h"
#include "data/data_source.h"

namespace perigee {

class RecallSource : public DataSource {
  public:
    /// One document per sample. Ids: values, then keys, then the marker. Throws Category::config, naming both numbers,
    /// where a sample has no room for its questions or the vocabulary too few keys.
    RecallSource(DataOptions const& options, Split split, uint64_t seed, int64_t vocab_size);

    int64_t samples_per_epoch() const override;
    /// Loss on all tokens or on answers alone, as configured; on validation samples always on answers alone.
    void append_sample(int64_t index, Batch& batch) const override;
    std::vector<Lookup> lookups(int64_t index) const override;
    std::string summary() const override;

  private:
    struct Document {
        std::vector<int32_t> tokens;  ///< sequence_length + 1
        std::vector<Lookup> lookups;  ///< one per question, in order
    };
    Document document(int64_t index) const;

    DataOptions options_;
    Split split_;
    uint64_t seed_;
    int32_t values_, keys_;  ///< ids [0, values_), [values_, values_ + keys_), then the marker
    int64_t topics_;         ///< of a document, the last one perhaps cut short
    int64_t asked_facts_;    ///< those of the topics that lie wholly in the first half
};

}  // namespace perigee
