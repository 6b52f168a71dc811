// All weights of a model whose checkpoint holds only a part of them. The others come from the base model, and adapters
// are merged into the weights.
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
    /// `base` is a Hugging Face folder or a checkpoint. It may be empty if the checkpoint has every weight.
    MergedWeights(FileSystem& files, Checkpoint const& checkpoint, ModelOptions const& model, Path const& base);

    /// Reads whole tensors, by Hugging Face name, as fp32.
    void read(std::vector<StoredTensor> const& parts);
    /// Call after every tensor has been read once. Throws Category::checkpoint if the checkpoint was trained with
    /// another base.
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
