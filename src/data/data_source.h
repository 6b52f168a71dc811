// Samples by number. A sample is a pure function of (options, seed, number): the only state of data loading is how many
// samples were consumed, so a run can resume on any layout.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/options.h"
#include "io/file_system.h"
#include "tensor/batch.h"

namespace perigee {

enum class Split { train, validation };

/// A token of a sample that can be predicted only from tokens far before it. All values are indices into the sample.
struct Lookup {
    int64_t from = 0;             ///< the token that predicts
    std::vector<int64_t> places;  ///< where what it needs is stated, each time
};

/// Any number of threads may call the const members at a time: training reads ahead while it evaluates.
class DataSource {
  public:
    virtual ~DataSource() = default;
    /// Samples in all data sets together. Training goes on for ever: each data set starts a new epoch, in another
    /// order, whenever its own samples are used up. Validation repeats after this many.
    virtual int64_t samples_per_epoch() const = 0;
    /// How often an epoch reads each data set, as "a 0.5 times, b 50.5 times". Empty if it reads each about once.
    virtual std::string uneven_reads() const { return {}; }
    /// Appends `sequence_length` tokens of sample `index` (any number >= 0) to the batch: a sample is whole documents
    /// or pieces of them, each sample starts a new document, and what is left of it is padding without loss.
    virtual void append_sample(int64_t index, Batch& batch) const = 0;
    /// What a sample's tokens have to look up, where the source knows: made-up data does.
    virtual std::vector<Lookup> lookups(int64_t /*index*/) const { return {}; }
    /// What was found, for the log: documents, tokens, samples, tokens never used. One line per data set.
    virtual std::string summary() const = 0;
};

/// Opens and checks all files. Throws Category::data naming file and place: missing or truncated files, foreign
/// formats, no sample of sequence_length + 1 tokens, too few documents to split, and, while reading, token ids outside
/// [0, vocab_size). Throws Category::config where `tokenize` wrote a data set with another tokenizer. The options must
/// be free of problems(); data.train may not be empty without mock_data, and Split::validation needs has_validation().
std::unique_ptr<DataSource> open_data(DataOptions const& options, Split split, uint64_t seed, int64_t vocab_size,
                                      FileSystem& files);

/// Samples `first`, `first` + 1, ... `first` + `count` - 1 as one packed batch.
Batch make_batch(DataSource const& source, int64_t first, int64_t count);

}  // namespace perigee
