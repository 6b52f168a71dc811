// Samples from indexed data sets. With Packing::cut, sample s of a data set is its tokens [s * S, (s + 1) * S],
// documents laid end to end, so neighbours share one token: the last target of one is the first input of the next. With
// Packing::best_fit it is the documents of bin s, each of n + 1 tokens taking n places, and padding.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/best_fit.h"
#include "data/blend.h"
#include "data/data_source.h"
#include "data/indexed_dataset.h"

namespace perigee {

class FileSource : public DataSource {
  public:
    /// See open_data. Training mixes the data sets by Blend, each in the order of a Permutation keyed by (seed, place
    /// in the list, epoch). Validation permutes the concatenation of all data sets once, the same for every seed, so
    /// that any first n samples are a fair draw.
    FileSource(DataOptions const& options, Split split, uint64_t seed, int64_t vocab_size, FileSystem& files);

    int64_t samples_per_epoch() const override { return samples_; }
    void append_sample(int64_t index, Batch& batch) const override;
    std::string uneven_reads() const override;
    std::string summary() const override;

  private:
    /// The documents of one data set that belong to the split.
    struct Part {
        std::unique_ptr<IndexedDataset> data;
        int64_t first_document = 0, end_document = 0;
        int64_t first_token = 0, end_token = 0;
        int64_t samples = 0;
        std::optional<BestFit> fit;  ///< of its documents, counted from first_document
        int64_t places = 0;          ///< that documents take, where there is a fit
    };
    struct Place {
        size_t part;
        int64_t sample;
        std::optional<Philox> documents = {};  ///< which of the documents of equal length
    };
    Part open_part(std::string const& path, FileSystem& files) const;
    void fit_documents(Part& part) const;
    Place train_place(int64_t index) const;
    Place validation_place(int64_t index) const;
    Place place_of(int64_t index) const;
    std::vector<int32_t> read_tokens(Part const& part, int64_t position, int64_t count) const;
    void append_cut(Part const& part, int64_t sample, Batch& batch) const;
    void append_whole(Part const& part, Place const& place, Batch& batch) const;

    DataOptions options_;
    Split split_;
    uint64_t seed_;
    int64_t vocab_size_;
    std::vector<Part> parts_;
    Blend blend_;
    int64_t samples_ = 0;
};

}  // namespace perigee
