// Made-up samples for trying things out without data. Documents of ragged length, each a phrase repeated to its end;
// phrases follow a fixed random grammar of four successors per token. A model learns the grammar first and copying from
// earlier in the document after, so the loss falls in both stages.
#pragma once

#include "base/philox.h"
#include "data/data_source.h"
#include "data/packing.h"

namespace perigee {

/// The random stream of a made-up sample; splits share none.
uint64_t sample_stream(Split split, int64_t index);

class MockSource : public DataSource {
  public:
    /// Throws Category::config below 8 tokens of vocabulary. The last id ends a document.
    MockSource(DataOptions const& options, Split split, uint64_t seed, int64_t vocab_size);

    int64_t samples_per_epoch() const override;
    void append_sample(int64_t index, Batch& batch) const override;
    std::string summary() const override;

  private:
    void append_document(Philox const& random, uint64_t& counter, Stretch& stretch) const;

    DataOptions options_;
    Split split_;
    uint64_t seed_;
    int64_t vocab_size_;
    Philox grammar_;
};

}  // namespace perigee
