// PREFIX.tokenizer.json beside a data set that `perigee tokenize` wrote: which tokenizer made it. A run with
// another tokenizer would read other text in it, and nothing else would tell.
#pragma once

#include <memory>
#include <string>

#include "data/indexed_dataset.h"
#include "data/tokenizer.h"
#include "io/file_system.h"

namespace perigee {

/// `name` is `tokenizer` as --tokenizer or data.tokenizer has it; `tokens` are those of the data set.
void write_tokenizer_record(FileSystem& files, Path const& prefix, Tokenizer const& tokenizer, std::string const& name,
                            int64_t tokens);

/// Holds data sets to the tokenizer of a run, which is opened where a data set has a record.
class TokenizerCheck {
  public:
    /// `name` is data.tokenizer.
    TokenizerCheck(FileSystem& files, std::string name) : files_(files), name_(std::move(name)) {}

    /// Throws Category::config where an id of the data set's tokenizer stands for other bytes, or for nothing, in that
    /// of the run. With the default tokenizer, a line of the log warns instead, except for
    /// conversations. Throws Category::data where the record is damaged.
    /// Paths do not matter, nor do tokens that the run's tokenizer has in addition. No record, or one of another number
    /// of tokens, says nothing.
    void check(IndexedDataset const& data);

  private:
    FileSystem& files_;
    std::string name_;
    std::unique_ptr<Tokenizer> tokenizer_;
    bool told_ = false;
};

}  // namespace perigee
