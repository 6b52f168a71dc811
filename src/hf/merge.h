// The weights of a checkpoint that holds a part of them: the others are those of the model that training began with,
// and adapters are added to the weights that they belong to.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "hf/base_fingerprint.h"
#include "hf/weights.h"
#include "model/options.h"

namespace perigee {

class MergedWeights {
  public:
    /// `base` is a Hugging Face folder or a checkpoint; empty where the checkpoint has every weight.
    MergedWeights(FileSystem& files, Checkpoint const& checkpoint, ModelOptions const& model, Path const& base);

    /// Whole tensors, by Hugging Face's names, in fp32.
    void read(std::vector<StoredTensor> const& parts);
    /// After every tensor was read once: throws Category::checkpoint where the base is not the one that the checkpoint
    /// was trained with.
    void check_base() const;

  private:
    void read_base(StoredTensor const& part);
    void add_adapter(StoredTensor const& part, std::string const& layer) const;

    Checkpoint const& checkpoint_;
    ModelOptions model_;
    Path base_;
    std::unique_ptr<HfWeights const> folder_;
    std::unique_ptr<Checkpoint const> base_checkpoint_;
    BaseFingerprint fingerprint_;
};

}  // namespace perigee
